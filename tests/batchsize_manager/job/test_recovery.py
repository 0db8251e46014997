"""Another attempt: a job is rewound, restored from what was kept, and its batches follow its members."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchsize_manager.job.batch_sizes import Batches
from batchsize_manager.job.config import JobConfig
from batchsize_manager.job.history import surviving_records
from batchsize_manager.job.job import Job
from batchsize_manager.job.state import SavedMember
from batchsize_manager.policies import make_policy
from idl.bounds import Bounds
from idl.errors import InvalidRequestError
from idl.exchange import FIXED_GROUP, PARAMETER_SERVER
from idl.plan import JobSpec
from idl.records import IterationRecord, Report
from idl.synchronisation import Synchronisation
from tests.batchsize_manager.job.driver import Beating, Driver, asp, restored

# -- recover and rewind


@pytest.mark.parametrize("reported", [False, True])
def test_who_is_gone_before_any_report_may_have_left_some_shards_without_parameters(reported):
    """All begin another attempt, which sets them again; once a report has come, all shards have them."""
    driver = Beating("a", "b", "c")
    own = [driver.next(name) for name in "abc"]
    if reported:
        driver.report_part("b", own[1])
    driver.job.leave("a", "a", 0.0)
    assert driver.job.attempts.is_recovering is not reported
    assert driver.job.must_recover("c", "c") == (None if reported else 1)
    assert (driver.next("b") is not None) is reported


def test_after_going_back_deadlines_count_from_the_new_work():
    """However long ago a member has reported last, it has the whole time-out once another is done again."""
    driver = Beating("a", "b", report_timeout=100.0)
    driver.finish("a", "b", "a")
    driver.tick_at(99.0)
    driver.job.recover("a", "a", 0, 99.0)
    driver.tick_at(500.0)
    for name in "ab":
        driver.rewind(name, 1, 0, 500.0)
        driver.next(name)
    driver.now = 510.0
    driver.finish("a")
    driver.tick_at(609.9)
    assert list(driver.job.members) == ["a", "b"]
    driver.tick_at(610.0)
    assert list(driver.job.members) == ["a"]


def test_a_job_does_not_go_back_before_its_beginning():
    """A job that goes on from a checkpoint began there."""
    job = Job(JobSpec(100, 10), JobConfig(), make_policy("even"), 7)
    job.join("a", "a", Bounds(), 0.0)
    job.recover("a", "a", 0, 0.0)
    with pytest.raises(InvalidRequestError, match="iteration 6: must be at least 7"):
        job.rewind("a", "a", 1, 6, 0.0)
    assert (job.attempts.is_recovering, job.attempts.number) == (True, 1)
    job.rewind("a", "a", 1, 9, 0.0)
    assert job.next_assignment("a", "a").iteration == 9


def test_only_bsp_goes_back():
    """The other modes say so."""
    driver = asp("a", "b")
    with pytest.raises(InvalidRequestError, match="mode asp cannot go back"):
        driver.job.recover("a", "a", 0, 0.0)


# -- restore


def test_members_have_time_to_come_back():
    """They count as disconnected; any call is a sign of life, and who gives none in time has died."""
    driver = Beating("a", "b", "c", "d")
    config = JobConfig(workers=4, silence=30.0)
    driver.job = restored(driver.job, config)
    driver.now = 110.0
    driver.job.heartbeat("a", "a", 0, driver.now)
    driver.join("b")
    driver.report("c", 0)
    driver.tick_at(129.9)
    assert list(driver.job.members) == ["a", "b", "c", "d"]
    driver.tick_at(130.0)
    assert list(driver.job.members) == ["a", "b", "c"]


def test_a_job_that_had_not_started_gathers_on():
    """Nothing has been trained, so there is nothing to recover."""
    driver = Beating("a")
    config = JobConfig(workers=2)
    driver.job = Job(JobSpec(100, 10), config, make_policy("even"))
    driver.join("a")
    driver.job = restored(driver.job, config)
    assert not driver.job.members.started
    assert (driver.job.attempts.is_recovering, driver.job.attempts.number) == (False, 0)
    driver.join("a")
    driver.join("b")
    assert driver.span("a") == (0, 0, 5)


def test_a_later_attempt_may_be_known_before_the_job_has_begun():
    """Members of a job that gathers again may go back then; the others begin in that attempt."""
    driver = Beating("a")
    driver.job = Job(JobSpec(100, 10), JobConfig(workers=2), make_policy("even"))
    driver.join("a")
    assert driver.job.heartbeat("a", "a", 3, 0.0) == 4
    driver.rewind("a", 4, 0)
    driver.join("b")
    assert driver.next("b").attempt == driver.job.saved.attempt == 4


@pytest.mark.parametrize(
    ("config", "exchange"),
    [(JobConfig(), FIXED_GROUP), (JobConfig(synchronisation=Synchronisation("asp")), PARAMETER_SERVER)],
)
def test_what_cannot_go_back_fails(config, exchange):
    """Workers that reduce gradients themselves, and modes without common versions, cannot be brought back."""
    job = Job(JobSpec(100, 10), config, make_policy("even"))
    job.join("a", "a", Bounds(), 0.0, exchange=exchange)
    assert job.members.saved == (SavedMember("a", "a", Bounds()),)
    assert job.saved.exchange == exchange
    assert "restart the job from its checkpoint" in restored(job, config).attempts.failure


@pytest.mark.parametrize("call", ["heartbeat", "report", "recover", "rewind"])
def test_an_attempt_that_was_not_kept_shares_its_number_with_no_other(call):
    """Who was told of an attempt by a manager that lost it is told of another, whatever it calls."""
    driver = Beating("a", "b")
    job = driver.job = restored(driver.job, JobConfig(2))
    assert job.recover("b", "b", 0, 100.0) == 1
    job.rewind("b", "b", 1, 0, 100.0)
    part = job.next_assignment("b", "b")
    calls = {
        "heartbeat": lambda: job.heartbeat("a", "a", 1, 100.0),
        "report": lambda: job.report("a", "a", Report(0, 1.0, attempt=1, start=0), 100.0),
        "recover": lambda: job.recover("a", "a", 1, 100.0),
        "rewind": lambda: job.rewind("a", "a", 1, 0, 100.0),
    }
    calls[call]()
    assert job.must_recover("a", "a") == job.must_recover("b", "b") == job.attempts.number > part.attempt == 1


def record(iteration, attempt):
    """A record of an iteration."""
    return IterationRecord.of(iteration, 0, 1, 1.0, {}, attempt, iteration)


def test_the_final_course_leaves_out_what_was_gone_back_over():
    """Later attempts make earlier ones void from where they begin; gaps stay."""
    kept = [record(i, 0) for i in range(8)] + [record(5, 1), record(6, 1), record(9, 2), record(5, 3)]
    surviving = surviving_records(kept[::-1])
    assert [(r.iteration, r.attempt) for r in surviving] == [(0, 0), (1, 0), (2, 0), (3, 0), (4, 0), (5, 3)]


# -- batches that follow the members


def test_a_scaled_job_is_restored_where_its_batches_were():
    """Also beyond the last record, whose iteration the shards may have ended without the manager."""
    config = JobConfig(workers=2, scale_batch=True)
    driver = Beating("a", "b", total=16, size=1000, scale_batch=True)
    driver.finish("a", "b")
    driver.next("a")
    driver.join("c")
    driver.finish("a", "b")
    driver.next("a")
    driver.join("d")
    driver.job = restored(driver.job, config, records=driver.job.history(0, 1))
    driver.rewind("d", 1, 3, 100.0)
    part = driver.next("d")
    assert (part.iteration, part.batch_start, part.total) == (3, 16 + 16 + 24, 32)


@settings(deadline=None)
@given(
    size=st.integers(1, 60),
    share=st.floats(0.01, 1.0),
    drop_last=st.booleans(),
    workers=st.integers(1, 4),
    members=st.lists(st.integers(1, 9), min_size=1, max_size=60),
)
def test_scaled_batches_follow_each_other(size, share, drop_last, workers, members):
    """Whatever the members, every sample of an epoch comes once, in order; what drops is a rest."""
    spec = JobSpec(size, max(1, int(size * share)), drop_last=drop_last)
    batches = Batches(spec, workers, 0, None)
    at = (0, 0)
    for iteration, count in enumerate(members):
        epoch, start, total = batches.take(iteration, count)
        assert (epoch, start, total) == batches.take(iteration, count)
        assert 1 <= total <= batches.size(count)
        if (epoch, start) != at:
            rest = size - at[1]
            assert (epoch, start) == (at[0] + 1, 0)
            assert rest == 0 or (drop_last and rest < max(map(batches.size, members)))
        if total < batches.size(count):
            assert not drop_last
            assert start + total == size
        at = (epoch, start + total)


def test_a_newcomer_sees_to_the_shards_until_somebody_has_reported_in_the_attempt():
    """Who decided where the attempt begins may have been released before it had the shards go there."""
    driver = Driver("a", "b")
    driver.finish("a", "b")
    assert driver.job.recover("a", "a", 0, driver.now) == 1
    driver.job.operations.drain("a", driver.now)
    driver.rewind("a", 1, 1)
    assert list(driver.job.members) == ["b"]
    driver.join("c")
    assert driver.job.must_recover("c", "c") == 1
    for name in "bc":
        driver.rewind(name, 1, 1)
    driver.finish("b")
    driver.join("d")
    assert driver.job.must_recover("c", "c") is driver.job.must_recover("d", "d") is None
