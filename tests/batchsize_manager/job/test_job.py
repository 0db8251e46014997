"""A job as a state machine, event by event on a made-up clock."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchsize_manager.job.config import JobConfig
from batchsize_manager.job.job import Job
from batchsize_manager.job.waiting import awaited
from batchsize_manager.policies import POLICIES, make_policy
from batchsize_manager.policies.base import Split
from batchsize_manager.policies.even import Even
from batchsize_manager.sizers import Sizes, Sizing
from idl.bounds import Bounds
from idl.errors import InvalidRequestError, NotMemberError
from idl.exchange import FIXED_GROUP, PARAMETER_SERVER
from idl.plan import Assignment, JobSpec
from idl.synchronisation import Synchronisation
from tests.batchsize_manager.job.driver import Beating, Driver, asp, backup, ssp

# -- from the first join to the end


def test_starts_when_all_workers_have_joined():
    """Nobody has an assignment until the last worker is there; then all have their slices."""
    job = Job(JobSpec(100, 32), JobConfig(workers=2), make_policy("even"))
    job.join("a", "a", Bounds(), 0.0)
    assert not job.members.started
    assert job.next_assignment("a", "a") is None
    job.join("b", "b", Bounds(), 0.0)

    assert job.members.started
    assignments = [job.next_assignment(name, name) for name in "ab"]
    assert [(a.iteration, a.start, a.count) for a in assignments] == [(0, 0, 16), (0, 16, 16)]
    assert list(job.members) == ["a", "b"]


class Noting(Even):
    """An even split that notes how many members it was given, each time."""

    def __init__(self):
        super().__init__()
        self.given = []

    def set_members(self, members):
        """Note and set the members."""
        self.given.append(len(members))
        super().set_members(members)


def test_members_are_set_once_for_all_who_start():
    """The policy gets the members once all who start the job are there, and then at each change."""
    policy = Noting()
    job = Job(JobSpec(100, 32), JobConfig(workers=8), policy)
    for number in range(9):
        assert policy.given == [8] * (number == 8)
        job.join(f"w{number}", f"w{number}", Bounds(), 0.0)
    assert policy.given == [8, 9]


def test_blocking_mode_waits_for_all_reports():
    """Iteration k + 1 is handed out when everybody has reported k, and not before."""
    driver = Driver("a", "b", "c")
    for k in range(5):
        assert [driver.iteration(name) for name in "abc"] == [k, k, k]
        driver.report("b", k)
        driver.report("a", k)
        assert driver.next("a") is driver.next("b") is None
        assert driver.iteration("c") == k
        driver.report("c", k)


def test_batches_follow_the_epochs():
    """The last batch of an epoch is smaller; the next epoch starts at position 0."""
    driver = Driver("a", "b", total=4, size=10)
    seen = []
    for _ in range(4):
        seen.append([(x.epoch, x.start, x.count, x.total) for x in map(driver.next, "ab")])
        driver.finish("a", "b")

    assert seen == [
        [(0, 0, 2, 4), (0, 2, 2, 4)],
        [(0, 4, 2, 4), (0, 6, 2, 4)],
        [(0, 8, 1, 2), (0, 9, 1, 2)],
        [(1, 0, 2, 4), (1, 2, 2, 4)],
    ]


def test_the_policy_learns_from_the_reports():
    """A worker that took a third of the time gets three times the samples."""
    driver = Driver("a", "b", policy="proportional")
    driver.report("a", 0, 3.0)
    driver.report("b", 0, 1.0)

    assert [driver.count("a"), driver.count("b")] == [8, 24]


def test_a_batch_without_a_sample_for_somebody():
    """A worker with no sample in a small last batch still reports, at a time of 0."""
    driver = Driver("a", "b", total=4, size=5)
    driver.finish("a", "b")
    assert [driver.count("a"), driver.count("b")] == [1, 0]
    driver.report("a", 1)
    driver.report("b", 1, 0.0)

    assert driver.iteration("b") == 2


def test_a_repeated_report_changes_nothing():
    """The first report of an iteration counts, whether others are still awaited or not."""
    driver = Driver("a", "b")
    driver.report("a", 0, 1.0)
    driver.report("a", 0, 5.0)
    assert driver.next("a") is None
    driver.report("b", 0, 1.0)
    driver.report("a", 0, 9.0)

    assert [driver.iteration("a"), driver.iteration("b")] == [1, 1]
    assert driver.job.history(0, 9)[0].parts["a"].batch_processing_time == 1.0


def test_a_repeated_join_changes_nothing():
    """A member that joins again goes on where it was, whether others are still awaited or not."""
    driver = Driver("a", "b")
    driver.report("a", 0)
    driver.join("a")
    assert driver.next("a") is None
    driver.report("b", 0)
    driver.join("b")

    assert [driver.iteration("a"), driver.iteration("b")] == [1, 1]
    assert list(driver.job.members) == ["a", "b"]


def test_a_delivered_assignment_does_not_change():
    """Once a worker has its slice, members coming and going do not move it."""
    driver = Driver("a", "b")
    driver.finish("a", "b")
    mine = driver.next("a")
    driver.join("c")
    assert driver.next("a") == mine
    driver.job.leave("b", "b", driver.now)

    assert driver.next("a") == mine


# -- what is refused


@pytest.mark.parametrize(
    ("iteration", "seconds", "said"),
    [
        (-1, 1.0, "iteration -1, but 0 is next for 'a'"),
        (1, 1.0, "iteration 1, but 0 is next for 'a'"),
        (7, 1.0, "iteration 7, but 0 is next for 'a'"),
        (0, 0.0, r"0\.0 for 16 samples"),
    ],
)
def test_a_report_that_cannot_be_is_refused(iteration, seconds, said):
    """Only the next iteration may be reported, once it is planned; and samples take time."""
    driver = Driver("a", "b")
    with pytest.raises(InvalidRequestError, match=said):
        driver.report("a", iteration, seconds)
    assert driver.iteration("a") == 0
    driver.report("a", 0)
    with pytest.raises(InvalidRequestError, match="1 is next"):
        driver.report("a", 1)


def test_strangers_are_refused():
    """A worker that never joined, or another incarnation of a connected member, can do nothing."""
    driver = Driver("a")
    with pytest.raises(InvalidRequestError, match="'a' is a member already"):
        driver.join("a", "second")
    for name, incarnation in (("x", "x"), ("a", "other")):
        with pytest.raises(NotMemberError, match=f"'{name}'.*'{incarnation}'"):
            driver.report(name, 0, incarnation=incarnation)
        with pytest.raises(NotMemberError):
            driver.next(name, incarnation)
        with pytest.raises(NotMemberError):
            driver.job.leave(name, incarnation, 0.0)
        driver.job.disconnect(name, incarnation, 0.0)
    driver.tick_at(100.0)

    assert list(driver.job.members) == ["a"]


def test_minima_that_do_not_fit_are_refused():
    """A worker whose minimum does not fit beside the others' stays outside; the job goes on."""
    driver = Driver("a", "b", total=10, bounds={"a": Bounds(4), "b": Bounds(4)})
    with pytest.raises(InvalidRequestError, match=r"'c'.* 11, more than the total batch size, 10"):
        driver.join("c", bounds=Bounds(3))
    assert list(driver.job.members) == ["a", "b"]
    driver.finish("a", "b")

    assert driver.iteration("a") == 1
    driver.join("c", bounds=Bounds(2))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"workers": 0}, "workers 0"),
        ({"lookahead": -1}, "lookahead -1"),
        ({"report_timeout": 0.0}, r"report_timeout 0\.0"),
        ({"report_timeout": float("inf")}, "report_timeout inf"),
        ({"report_timeout": float("nan")}, "report_timeout nan"),
        ({"reconnect_grace": -1.0}, r"reconnect_grace -1\.0"),
        ({"reconnect_grace": float("nan")}, "reconnect_grace nan"),
        ({"keep": -1.0}, r"keep -1\.0: must be at least 0"),
        ({"silence": 0.0, "heartbeat": 0.0}, r"silence 0\.0: must be above 0"),
        ({"absence": float("nan")}, "absence nan"),
        ({"return_grace": -0.5}, r"return_grace -0\.5"),
        ({"heartbeat": 10.0}, r"heartbeat 10\.0: must be below silence, 10\.0 s"),
        ({"lookahead": 2, "synchronisation": Synchronisation("asp")}, "lookahead 2: belongs to bsp"),
        (
            {"workers": 3, "synchronisation": Synchronisation("backup", replicas_to_aggregate=4)},
            "replicas_to_aggregate 4: must be at most the number of workers, 3",
        ),
    ],
)
def test_config_errors_name_the_value(arguments, said):
    """A setting out of its range is refused with its name and value."""
    with pytest.raises(ValueError, match=said):
        JobConfig(**arguments)


# -- members that go


def gone_by_leaving(driver):
    """Let b leave."""
    driver.job.leave("b", "b", driver.now)


def gone_by_dying(driver):
    """Let b's connection break and the grace period pass."""
    driver.job.disconnect("b", "b", driver.now)
    driver.tick_at(driver.now + 1.0)


def gone_by_silence(driver):
    """Let the others wait for b until the report timeout."""
    driver.tick_at(driver.now + 120.0)


GONE = pytest.mark.parametrize("go", [gone_by_leaving, gone_by_dying, gone_by_silence])


@GONE
def test_the_others_redo_what_is_missing(go):
    """The slice is split among those who wait, and the next plan gives the whole batch to those who stay."""
    driver = Driver("a", "b", "c", total=30)
    driver.next("b")
    driver.report("a", 0)
    driver.report("c", 0)
    go(driver)

    assert list(driver.job.members) == ["a", "c"]
    pieces = [driver.next(name) for name in "ac"]
    assert [(p.iteration, p.start, p.count, p.total) for p in pieces] == [(0, 10, 5, 30), (0, 15, 5, 30)]
    driver.finish("c")
    assert driver.next("c") is None
    driver.finish("a")
    assert [driver.iteration("a"), driver.iteration("c")] == [1, 1]
    assert [driver.count("a"), driver.count("c")] == [15, 15]
    assert list(driver.job.lost_since(0)) == []
    record = driver.job.history(0, 9)[0]
    assert (record.total, {name: w.batch_size for name, w in record.parts.items()}) == (
        30,
        {"a": 15, "c": 15},
    )
    with pytest.raises(NotMemberError, match="b "):
        driver.next("b")


@pytest.mark.parametrize("go", [gone_by_leaving, gone_by_dying])
def test_gone_after_its_report_loses_nothing(go):
    """A slice that was reported is not lost when its worker goes."""
    driver = Driver("a", "b", total=30)
    driver.report("b", 0)
    go(driver)
    driver.report("a", 0)

    assert list(driver.job.lost_since(0)) == []
    assert driver.count("a") == 30
    assert set(driver.job.history(0, 9)[0].workers) == {"a", "b"}


def test_a_plan_that_nobody_has_seen_is_made_again():
    """When a member goes before anybody has asked for the new plan, the plan does without it."""
    driver = Driver("a", "b", "c", total=30)
    driver.finish("a", "b", "c")
    driver.job.leave("b", "b", driver.now)

    assert [driver.count("a"), driver.count("c")] == [15, 15]
    assert driver.iteration("a") == 1
    assert list(driver.job.lost_since(0)) == []


def test_a_member_that_reconnects_within_grace_stays():
    """A connection that breaks and comes back in time loses nothing, by join or by report."""
    driver = Driver("a", "b", reconnect_grace=5.0)
    driver.job.disconnect("a", "a", 0.0)
    driver.job.disconnect("b", "b", 0.0)
    driver.tick_at(4.9)
    driver.join("a")
    driver.report("b", 0)
    driver.tick_at(60.0)

    assert list(driver.job.members) == ["a", "b"]
    assert driver.iteration("a") == 0


def test_death_counts_from_the_last_break():
    """The grace period begins when the connection breaks, and ends exactly at its length."""
    driver = Driver("a", "b", reconnect_grace=5.0)
    driver.job.disconnect("b", "b", 10.0)
    driver.tick_at(14.9)
    assert list(driver.job.members) == ["a", "b"]
    driver.tick_at(15.0)

    assert list(driver.job.members) == ["a"]


def test_new_incarnation_takes_over_a_broken_connection():
    """A worker that restarts gets its name back at once, as a newcomer; its old slice is redone by others."""
    driver = Driver("a", "b")
    driver.finish("a", "b")
    old = driver.next("b")
    driver.job.disconnect("b", "b", 0.0)
    driver.join("b", "second")
    assert driver.next("b", "second") is None
    with pytest.raises(NotMemberError):
        driver.report("b", 1)
    driver.report("a", 1)
    assert driver.next("a") == old
    driver.finish("a")

    assert driver.next("b", "second").iteration == 2


def test_nobody_is_removed_when_nobody_waits():
    """However long an iteration takes, a member is not late before another has reported."""
    driver = Driver("a", "b", report_timeout=10.0)
    driver.tick_at(10**6)
    assert list(driver.job.members) == ["a", "b"]
    driver.report("a", 0)
    driver.tick_at(10**6 + 9.9)
    assert list(driver.job.members) == ["a", "b"]
    driver.tick_at(10**6 + 10)
    assert list(driver.job.members) == ["a"]


@pytest.mark.parametrize("exchange", [PARAMETER_SERVER, FIXED_GROUP])
def test_a_script_that_does_something_else_is_waited_for(exchange):
    """A member between two batches is not late while it is heard of; events say who is waited for."""
    driver = Beating("a", "b", report_timeout=20.0, exchange=exchange)
    driver.report("b", 0)
    for now in range(2, 62, 2):
        driver.now = float(now)
        driver.beat("a", between=True)
        driver.beat("b")
        driver.tick_at(driver.now)
    assert driver.job.members.standings(driver.now)[0].state == "between batches"
    said = [event for event in driver.job.outbox.events if "something else" in event]
    assert said == ["a does something else between two batches; the others wait for it at iteration 0"] * 3
    assert "a has not reported iteration 0; a does something else" in awaited(driver.job)
    driver.beat("a")  # it has begun its batch, and has time for it
    assert driver.job.members.standings(driver.now)[0].state == "working"
    for now in (61.0, 79.9):
        driver.tick_at(now)
        driver.beat("b")
        assert "a" in driver.job.members
        assert not driver.job.is_held_up
    driver.beat("a")
    driver.tick_at(80.0)
    assert list(driver.job.members) == ["b"]


def test_who_has_gone_does_not_wait():
    """A member alone is not taken out for being later than one that reported and left."""
    driver = Driver("a", "b", report_timeout=10.0)
    driver.report("b", 0)
    driver.job.leave("b", "b", 0.0)
    driver.tick_at(100.0)

    assert list(driver.job.members) == ["a"]
    driver.finish("a")
    assert driver.iteration("a") == 1


def test_a_job_ends_when_its_last_member_leaves():
    """Nobody is awaited then, even if an iteration is under way."""
    driver = Driver("a", "b")
    driver.finish("a", "b")
    driver.next("a")
    driver.job.leave("a", "a", 0.0)
    assert not driver.job.ended
    driver.job.leave("b", "b", 0.0)

    assert driver.job.ended


def test_infeasible_after_a_loss():
    """When those who stay cannot take the batch, and nobody else comes, the job fails and says why."""
    for policy in POLICIES:
        driver = Driver("a", "b", policy=policy, bounds={"a": Bounds(1, 20), "b": Bounds(1, 20)})
        driver.next("b")
        driver.report("a", 0)
        assert driver.job.attempts.failure is None
        driver.job.leave("b", "b", 0.0)
        driver.finish("a")
        assert driver.job.attempts.failure is None
        driver.tick_at(600.0)
        assert driver.job.attempts.failure.startswith(
            "the workers can take 20 samples together at most, less than"
        )
        assert driver.iteration("a") != 1


# -- members that come


def test_joining_in_the_middle_enters_at_the_next_unplanned_iteration():
    """A newcomer waits for the running iteration, which goes on as planned, and is in the next."""
    driver = Driver("a", "b", total=30)
    driver.next("a")
    driver.join("c")
    assert driver.next("c") is None
    assert driver.count("a") == 15
    driver.finish("a", "b")

    assert [driver.iteration(name) for name in "abc"] == [1, 1, 1]
    assert [driver.count(name) for name in "abc"] == [10, 10, 10]
    driver.finish("a", "b")
    assert driver.next("a") is None
    driver.finish("c")
    assert driver.iteration("a") == 2


def test_report_of_what_was_before_a_newcomer_has_no_effect():
    """Who was taken out and joined again reports what others have done meanwhile, and goes on."""
    driver = Driver("a")
    driver.finish("a")
    driver.next("a")
    driver.join("b")
    driver.report("b", 0)
    assert [tuple(record.workers) for record in driver.job.history(0, 9)] == [("a",)]
    driver.finish("a")
    assert driver.iteration("b") == 2


# -- lookahead


def test_lookahead_plans_ahead_of_the_reports():
    """With a lookahead of 2, a fast worker gets two more iterations, and waits for the slowest then."""
    driver = Driver("a", "b", lookahead=2)
    for k in range(3):
        assert driver.iteration("a") == k
        driver.report("a", k)
    assert driver.next("a") is None
    assert driver.job.iterations.planned == 3
    driver.report("b", 0)
    assert driver.iteration("a") == 3
    assert driver.job.iterations.planned == 4


def test_lookahead_begins_another_attempt_once_a_loss_is_in_the_way():
    """The others finish what does not need the slice that is missing; then all go back to what does."""
    driver = Driver("a", "b", "c", lookahead=2, total=30)
    driver.finish("a", "b", "c", "b", "b", "a")
    driver.next("c")
    driver.job.leave("c", "c", 0.0)
    assert (driver.job.attempts.recovering, driver.iteration("a")) == (True, None)
    assert driver.job.must_recover("b", "b") == 1
    driver.rewind("b", 1, 1)

    assert driver.next("b") == Assignment(1, 0, 45, 15, 30, 1, 30)
    assert driver.job.must_recover("a", "a") == 1
    driver.rewind("a", 1, 1)
    assert (driver.job.must_recover("a", "a"), driver.count("a")) == (None, 15)


def test_lookahead_goes_on_while_a_loss_is_not_in_the_way():
    """Who leaves after its last iteration does not throw those back that are about to finish theirs."""
    driver = Driver("a", "b", lookahead=1)
    driver.finish("a")
    driver.next("b")
    driver.job.leave("a", "a", 0.0)
    assert not driver.job.attempts.recovering
    driver.finish("b")
    assert driver.job.iterations.first_open == 1
    driver.job.leave("b", "b", 0.0)
    assert driver.job.ended


def test_a_member_that_reports_is_not_late_for_being_behind():
    """Who is behind is taken out for its own silence only, however long others are ahead of it."""
    driver = Driver("a", "b", lookahead=2, report_timeout=100.0)
    for _ in range(3):
        driver.finish("a")
    driver.tick_at(9.0)
    driver.finish("b")
    driver.tick_at(108.9)
    assert list(driver.job.members) == ["a", "b"]
    driver.tick_at(109.0)
    assert list(driver.job.members) == ["a"]


# -- the other ways to wait for each other


def test_ssp_stops_the_fastest_at_the_bound():
    """A worker may begin the iteration `staleness` after the slowest one's, and no later one."""
    driver = ssp("a", "b", staleness=5)
    for k in range(6):
        assert driver.iteration("a") == k
        driver.finish("a")
    assert driver.next("a") is None
    driver.finish("b")
    assert driver.iteration("a") == 6
    driver.finish("a")
    assert driver.next("a") is None


def test_ssp_goes_on_when_the_slowest_has_gone():
    """The bound is to the slowest that is left; nobody has a loss to tell the parameter server."""
    driver = ssp("a", "b", "c", staleness=1)
    driver.finish("a", "a", "b")
    assert driver.next("a") is None
    driver.job.leave("c", "c", 0.0)
    assert driver.iteration("a") == 2
    driver.finish("a")
    assert driver.next("a") is None
    assert list(driver.job.lost_since(0)) == []


def test_asp_never_waits():
    """However far ahead of the others a worker is, it has its next iteration."""
    driver = asp("a", "b", total=4, size=10)
    for k in range(100):
        assert driver.iteration("a") == k
        driver.finish("a")
    assert driver.iteration("b") == 0


def test_an_asp_newcomer_starts_beside_the_fastest():
    """A worker that joins late has the fastest one's iteration first, and its own pace then."""
    driver = asp("a", "b", total=4, size=10)
    for _ in range(100):
        driver.finish("a")
    driver.join("c")
    assert driver.iteration("c") == driver.iteration("a") == 100
    driver.finish("c")
    assert driver.iteration("c") == 101


def test_an_asp_iteration_is_recorded_once_all_have_reported_it():
    """The history has an iteration when the slowest worker has finished it, however far others are."""
    driver = asp("a", "b", total=4, size=10)
    for _ in range(100):
        driver.finish("a")
    assert driver.job.history(0, 9) == []
    driver.finish("b")
    assert [r.iteration for r in driver.job.history(0, 9)] == [0]


def test_asp_takes_out_only_who_is_silent():
    """A worker that others have left far behind stays while it reports, and goes once it is silent."""
    driver = asp("a", "b", report_timeout=10.0)
    for now in range(0, 100, 2):
        driver.finish("a", "a", "a")
        if now % 8 == 0:
            driver.finish("b")
        driver.tick_at(float(now))
    assert list(driver.job.members) == ["a", "b"]
    driver.tick_at(106.0)
    assert list(driver.job.members) == ["a"]
    assert "b did not report iteration 13 in time" in driver.job.outbox.events


def test_asp_keeps_no_more_plans_than_fit(monkeypatch):
    """A worker that is too far behind to keep its plans for goes on with the oldest that is kept."""
    monkeypatch.setattr("batchsize_manager.job.iterations._OPEN_RECORDS", 20)
    driver = asp("a", "b", report_timeout=1e9)
    assert driver.iteration("b") == 0
    for _ in range(50):
        driver.finish("a")
    assert len(driver.job.iterations.progress) <= 12
    driver.report("b", 0)
    oldest = driver.iteration("b")
    assert oldest >= 39
    assert [r.iteration for r in driver.job.history(0, 99)] == list(range(oldest))
    with pytest.raises(InvalidRequestError, match=f"{oldest} is next for 'b'"):
        driver.report("b", 1)
    driver.finish("b", "b")
    assert driver.iteration("b") == oldest + 2


def test_waiting_is_until_one_may_go_on():
    """Ahead of others, a worker has waited until its next plan was made, not until its last was complete."""
    driver = ssp("a", "b", staleness=1)
    driver.now = 1.0
    driver.finish("a")
    driver.now = 2.0
    driver.finish("a")  # and waits until 5.0
    driver.now = 5.0
    driver.finish("b")
    driver.now = 7.0
    driver.finish("a", "b")
    first, second = driver.job.history(0, 9)

    assert (first.parts["a"].waiting_time, first.parts["b"].waiting_time) == (0.0, 0.0)
    assert (second.parts["a"].waiting_time, second.parts["b"].waiting_time) == (3.0, 0.0)
    assert (first.duration, second.duration) == (5.0, 2.0)


def test_backup_goes_on_without_the_late():
    """When enough have reported, the iteration is over; the late one, once it reports, gets the newest."""
    driver = backup("a", "b", "c", replicas=2, total=30)
    assert driver.iteration("c") == 0
    for k in range(4):
        driver.finish("a")
        assert driver.next("a") is None
        driver.finish("b")
        assert driver.iteration("a") == k + 1
    driver.report("c", 0)
    driver.report("c", 0)
    assert (driver.iteration("c"), driver.count("c")) == (4, 10)
    assert driver.iteration("b") == 4
    driver.finish("c", "a")
    driver.report("b", 4)

    assert [driver.iteration(name) for name in "abc"] == [5, 5, 5]
    history = driver.job.history(0, 9)
    assert [set(r.workers) for r in history] == [{"a", "b"}] * 4 + [{"a", "c"}]
    assert [r.total for r in history] == [30] * 5


def test_backup_waits_for_all_when_too_few_are_left():
    """With fewer members than gradients to a step, everybody is waited for, and losses are told."""
    driver = backup("a", "b", "c", replicas=2, total=30)
    for _ in range(3):
        driver.finish("a", "b")
    driver.next("c")
    lost = driver.next("b")
    driver.job.leave("b", "b", 0.0)
    assert list(driver.job.lost_since(3)) == [lost]
    driver.finish("a")
    assert driver.next("a") is None
    driver.finish("c")
    assert (driver.iteration("a"), driver.iteration("c")) == (4, 4)
    driver.finish("c")
    assert driver.next("c") is None
    driver.finish("a")
    assert driver.iteration("c") == 5


def test_backup_does_not_count_who_has_no_samples():
    """Where a small last batch leaves workers without a sample, only the others' reports make it complete."""
    driver = backup("a", "b", "c", replicas=2, total=3, size=5)
    driver.finish("a", "b")
    driver.report("c", 0)
    assert [driver.count(name) for name in "abc"] == [1, 1, 0]
    driver.report("c", 1, 0.0)
    driver.finish("a")
    assert driver.next("a") is None
    driver.finish("b")
    assert driver.iteration("a") == 2


def test_backup_takes_out_who_stays_away():
    """A late worker that reports now and then stays; one that is silent for the time-out goes."""
    driver = backup("a", "b", "c", replicas=2, report_timeout=10.0)
    for now in range(0, 40, 2):
        driver.now = float(now)
        driver.finish("a", "b")
        if now % 8 == 0:
            driver.finish("c")
        driver.tick_at(driver.now)
    assert list(driver.job.members) == ["a", "b", "c"]
    driver.tick_at(43.9)  # the others are ahead of it since 34.0
    assert list(driver.job.members) == ["a", "b", "c"]
    driver.tick_at(44.0)
    assert list(driver.job.members) == ["a", "b"]


# -- what can be read


@pytest.fixture
def two_records():
    """The records of two iterations: reports at 3 and 5 s, then both at 6 s."""
    driver = Driver("a", "b", total=30)
    driver.now = 3.0
    driver.report("a", 0, 2.5, waiting=0.25)
    driver.now = 5.0
    driver.report("b", 0, 4.0)
    driver.now = 6.0
    driver.report("a", 1)
    driver.report("b", 1)
    return driver.job.history(0, 9)


def test_a_duration_lasts_from_the_plan_to_the_last_report(two_records):
    """An iteration's record has the seconds from its plan to the last worker's report."""
    first, second = two_records

    assert (first.iteration, first.epoch, first.total, first.duration) == (0, 0, 30, 5.0)
    assert (second.iteration, second.duration) == (1, 1.0)


def test_waiting_is_for_the_last_worker_and_in_the_parameter_server(two_records):
    """A worker's waiting time is what it reports, and the time from its report to the last one."""
    first, _ = two_records
    a, b = first.parts["a"], first.parts["b"]

    assert (a.batch_size, a.batch_processing_time, a.waiting_time) == (15, 2.5, 2.25)
    assert (b.batch_size, b.batch_processing_time, b.waiting_time) == (15, 4.0, 0.0)


def test_history_pages():
    """History starts at the iteration asked for and is no longer than the limit."""
    driver = Driver("a")
    assert driver.job.history(0, 9) == []
    for _ in range(10):
        driver.finish("a")

    assert [r.iteration for r in driver.job.history(0, 4)] == [0, 1, 2, 3]
    assert [r.iteration for r in driver.job.history(8, 4)] == [8, 9]
    assert driver.job.history(10, 4) == []


def test_history_forgets_the_oldest(monkeypatch):
    """Of more records than are kept, the oldest go, and pages still start where asked."""
    monkeypatch.setattr("batchsize_manager.job.history._RECORDS", 6)
    driver = Driver("a", "b")
    for _ in range(10):
        driver.finish("a", "b")

    assert [r.iteration for r in driver.job.history(0, 9)] == [7, 8, 9]
    assert [r.iteration for r in driver.job.history(8, 9)] == [8, 9]


def test_events_say_what_happened():
    """Joins, losses with their reason, and a policy's warning are said once each."""
    driver = Driver("a", "b", "c", total=9, policy="leader_straggler", report_timeout=50.0)
    for k in range(8):
        for name, seconds in (("a", 3.0), ("b", 2.0), ("c", 1.0)):
            driver.report(name, k, seconds)
    driver.job.disconnect("a", "a", 0.0)
    driver.tick_at(1.0)
    driver.job.leave("b", "b", 1.0)
    events = list(driver.job.outbox.events)

    assert events[:3] == [f"{name} joined, for iteration 0 on" for name in "abc"]
    assert sum("remove this straggler" in event for event in events) == 1
    assert events[-2:] == ["a died: its connection broke", "b left"]
    assert len(driver.job.outbox.take().log) == len(events) == 6


def test_events_name_who_was_late():
    """A member that was taken out for its silence is named with the iteration."""
    driver = Driver("a", "b", report_timeout=50.0)
    driver.report("a", 0)
    driver.tick_at(50.0)

    assert driver.job.outbox.events[-1] == "b did not report iteration 0 in time"
    driver.next("a")
    assert driver.job.outbox.events[-1].startswith(
        "a is given 16 samples of iteration 0, from position 16 on"
    )


@pytest.mark.parametrize(("given", "size"), [(8, 8), (64, 60), (None, 32)])
def test_a_job_begins_with_the_configured_batch_size(given, size):
    """The first batch has the configured size, at most the data set's; else the one that workers ask for."""
    job = Job(
        JobSpec(60, 32), JobConfig(sizing=Sizing(batch_size=given and Sizes(given))), make_policy("even")
    )
    job.join("a", "a", Bounds(), 0.0)

    assert job.next_assignment("a", "a").total == size
    is_logged = bool(job.outbox.events and "the manager's configuration" in job.outbox.events[0])
    assert is_logged == (given is not None)


class Wrong(Even):
    """A policy whose counts are no split."""

    def __init__(self, counts):
        super().__init__()
        self._counts = counts

    def split(self, total):
        """Return the counts."""
        return Split(self._counts)


@pytest.mark.parametrize("counts", [[-1, 33], [16, 15], [32]])
def test_a_split_that_cannot_be_is_not_planned(counts):
    """The batch is split evenly, and a warning says why."""
    job = Job(JobSpec(100, 32), JobConfig(workers=2), Wrong(counts))
    for name in "ab":
        job.join(name, name, Bounds(), 0.0)
    events = [event for event, _ in job.outbox.take().log]
    assert any(f"split 32 into {counts}, which cannot be" in event for event in events)
    assert [job.next_assignment(name, name).count for name in "ab"] == [16, 16]


@pytest.mark.ci
@pytest.mark.parametrize("policy", POLICIES)
@given(times=st.lists(st.sampled_from([1e-9, 1e-6, 1.0, 1e5, 3.1e7]), min_size=4, max_size=12))
def test_times_of_any_size_that_may_be_reported_give_splits(policy, times):
    """The policy's own, without a warning."""
    driver = Driver("a", "b", policy=policy)
    for iteration, (first, second) in enumerate(itertools.pairwise(times)):
        driver.report("a", iteration, first)
        driver.report("b", iteration, second)
        assert driver.count("a") + driver.count("b") == 32
    assert not any("cannot be" in event for event, _ in driver.job.outbox.take().log)
