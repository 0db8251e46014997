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
from idl.plan import JobSpec
from tests.batchsize_manager.job.driver import Beating, Driver, asp, backup, ssp

# -- from the first join to the end


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


# -- members that go


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


# -- lookahead


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
