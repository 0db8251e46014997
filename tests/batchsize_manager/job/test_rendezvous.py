"""Workers whose group the manager forms: each attempt begins with a rendezvous, which decides the group."""

import pytest

from batchsize_manager.balancing import Balancing
from batchsize_manager.job.config import JobConfig
from batchsize_manager.job.waiting import awaited
from idl.bounds import Bounds
from idl.endings import FINISHED
from idl.errors import InvalidRequestError
from idl.exchange import FIXED_GROUP, FORMED_GROUP
from idl.records import Report
from idl.synchronisation import Synchronisation
from tests.batchsize_manager.job.driver import Beating, Choosy, Driver, restored


class Meeting(Beating):
    """A driver of a job whose group the manager forms; its workers promise heartbeats."""

    def __init__(self, *names, **config):
        super().__init__(*names, promising=names, exchange=FORMED_GROUP, **config)

    def arrive(self, name, attempt, steps=0, formed=None, **more):
        """Let a worker call `rewind`, once it was told of the attempt."""
        self.job.must_recover(name, name)
        self.job.rewind(name, name, attempt, steps, self.now, store=f"{name}:1", formed=formed, **more)

    def meet(self, *names, attempt=1, steps=0, formed=None):
        """Let workers arrive that have the same."""
        for name in names:
            self.arrive(name, attempt, steps, formed)

    def answered(self, name, **call):
        """Return what a worker is answered to `rewind`."""
        return self.job.answer(name, name, **({"rewinds": True} | call))

    def seat(self, name):
        """Return (rank, size, store, source, lacks) of a worker's group, None where it has to wait."""
        answer = self.answered(name)
        return answer and answer.seat and (*(getattr(answer.seat, f) for f in answer.seat.__slots__[:5]),)

    def must(self, name):
        """Return the attempt into which a worker has to go."""
        return self.job.must_recover(name, name)

    def tell(self, name, part):
        """Let a worker report a part."""
        self.job.report(
            name, name, Report(part.iteration, 1.0, attempt=part.attempt, start=part.start), self.now
        )

    def find_slow(self, *names):
        """Have the policy find from now on that workers slow the job."""
        self.job.operations.change_policy(
            Balancing("even", "ema", 0.1), Choosy(names), "the policy", self.now
        )

    def iterations(self):
        """Return the iterations of the history, with the workers that reported them."""
        return {record.iteration: record.workers for record in self.job.history(0, 1000)}


def running(*names, **config):
    """Workers of a job that has begun, in the group of attempt 1, each with its part of iteration 0."""
    driver = Meeting(*names, **config)
    driver.meet(*names)
    for name in names:
        assert driver.answered(name).assignment.iteration == 0
    return driver


@pytest.mark.parametrize("all_tell", [False, True])
def test_half_a_step_is_a_step_and_is_recorded_once_all_have_reported_it(all_tell):
    """The job goes on after it, with the state of one that has taken it; reports that came late count."""
    driver = running("a", "b", "c", total=30)
    parts = {name: driver.next(name) for name in "abc"}
    driver.tell("c", parts["c"])
    assert driver.job.recover("a", "a", 1, driver.now) == 2
    for name in "ab" if all_tell else "b":
        driver.tell(name, parts[name])
    driver.arrive("a", 2, 0, 1)
    driver.meet("b", "c", attempt=2, steps=1, formed=1)
    assert driver.seat("a") == (0, 3, "a:1", 1, True)
    assert driver.seat("c") == (2, 3, "a:1", 1, False)
    assert driver.span("a") == (1, 30, 10)
    assert driver.iterations() == ({0: ("c", "a", "b")} if all_tell else {})


@pytest.mark.parametrize("failed", [False, True])
def test_who_has_no_state_when_the_others_finish_has_nothing_to_do(failed):
    """Nor would there be anything to start again; but where the last one has failed, the job fails."""
    driver = running("a", total=30)
    driver.finish("a")
    driver.job.join("b", "b", Bounds(), driver.now, exchange=FORMED_GROUP)
    driver.job.leave("a", "a", driver.now, failed=failed)
    driver.tick_at(2.0)
    driver.arrive("b", 2)
    over = driver.job.take_effects().over
    assert over.failed == failed
    if failed:
        assert "no worker has its state any more" in over.why
    else:
        assert driver.answered("b").released == over.why == FINISHED


@pytest.mark.parametrize("newcomer", [True, False])
@pytest.mark.parametrize("returns", [True, False])
def test_who_was_cut_off_is_waited_for_if_nobody_else_has_the_state(newcomer, returns):
    """Its connection may only have been broken for a while, and then the job goes on with it."""
    driver = running("a", total=30, return_grace=20.0)
    driver.finish("a")
    if newcomer:
        driver.job.join("b", "b", Bounds(), driver.now, exchange=FORMED_GROUP, beats=True)
    driver.job.disconnect("a", "a", driver.now)
    driver.tick_at(5.0)
    assert "a" not in driver.job.members
    if newcomer:
        driver.arrive("b", driver.must("b"))
        driver.job.refuse("c", "why")
        assert awaited(driver.job).endswith(
            "nobody has the training's state but maybe a, of which nothing is heard; c was refused: why"
        )
    driver.tick_at(10.0)
    driver.job = restored(driver.job, JobConfig(return_grace=20.0), now=driver.now)
    assert not driver.job.take_effects().over
    if newcomer:
        driver.beat("b")
        driver.arrive("b", driver.must("b"))
    driver.tick_at(29.0)
    assert not driver.job.take_effects().over
    if returns:
        driver.beat("a")
        driver.arrive("a", driver.must("a"), 1, 1)
        driver.tick_at(50.0)
        assert driver.span("a")[0] == 1
        assert driver.seat("a")[1] == 1 + newcomer
    else:
        driver.beat("b") if newcomer else None
        driver.tick_at(31.0)
        said = "no worker has its state any more" if newcomer else "all members have gone"
        assert said in driver.job.take_effects().over.why


def test_a_script_that_does_something_else_is_not_late_for_a_group():
    """While it is heard of, a member between two batches is waited for; then it has the usual time."""
    driver = running("a", "b", total=30, report_timeout=60.0)
    driver.job.recover("a", "a", 1, driver.now)
    driver.arrive("a", 2, 0, 1)
    for now in (50.0, 100.0, 150.0, 200.0, 259.0, 261.0):
        driver.now = now
        driver.beat("a")
        driver.beat("b", between=now < 200.0)
        driver.job.tick(now)
        assert ("b" in driver.job.members) == (now < 260.0)


def test_slow_workers_are_released_before_another_plan_is_made():
    """The others are sent for at once."""
    driver = running("a", "b", "c", total=30, release=True)
    driver.find_slow("c")
    driver.finish("a", "b", "c")
    assert driver.job.members.why_released("c", "c") == "c is slow"
    assert [driver.must(name) for name in "ab"] == [2, 2]
    driver.meet("a", "b", attempt=2, steps=1, formed=1)
    assert (driver.span("a"), driver.span("b")) == ((1, 30, 15), (1, 45, 15))


def test_a_clean_leave_disturbs_nobody_unless_others_go_on():
    """All leave at the end: no attempt begins. Who does not, is sent for after a second."""
    driver = running("a", "b", "c", total=30)
    driver.job.leave("a", "a", 0.0)
    driver.tick_at(0.9)
    assert driver.must("b") is None
    driver.tick_at(1.1)
    assert driver.must("b") == 2
    driver = running("a", "b", total=30)
    driver.job.leave("a", "a", 0.0)
    driver.job.leave("b", "b", 0.1)
    assert driver.job.attempts.number == 1
    assert driver.job.has_ended


def test_who_waits_after_a_clean_leave_is_sent_for_at_once():
    """It has reported, and nothing is planned that it could wait for."""
    driver = running("a", "b", total=30)
    driver.finish("a")
    driver.job.leave("a", "a", 0.0)
    assert driver.must("b") is None
    driver.finish("b")
    assert driver.must("b") == 2


def test_a_group_of_an_attempt_that_was_not_kept_shares_its_number_with_no_other():
    """Who formed it under a manager that lost the attempt is in another one with the others."""
    driver = Meeting("a", "b")
    assert driver.must("a") == 1
    driver.arrive("a", 1, 3, 1)
    assert driver.must("a") == driver.must("b") == 2
    driver.arrive("a", 2, 3, 1)
    driver.arrive("b", 2)
    assert driver.seat("a") == (0, 2, "a:1", 0, False)
    assert driver.seat("b") == (1, 2, "a:1", 0, True)


@pytest.mark.parametrize("grouped", [False, True])
def test_who_is_back_in_no_group_when_the_others_finish_does_not_fail_for_lack_of_others(grouped):
    """It has asked for work already, but had no part in their last iteration; who had one fails."""
    driver = Meeting("a", "b", "c", total=16, bounds=dict.fromkeys("abc", Bounds(1, 8)), keep=60.0)
    driver.meet("a", "b", "c")
    driver.now = 11.0
    driver.beat("a", "b")
    driver.tick_at(11.0)
    driver.meet("a", "b", attempt=2, formed=1)
    assert [driver.iteration(name) for name in "ab"] == [0, 0]
    driver.arrive("c", 2, 0, 1)
    assert driver.last_events(1) == ["c is back"]
    if grouped:
        driver.finish("a", "b")
        driver.meet("a", "b", "c", attempt=3, steps=1, formed=2)
    for name in "ab":
        driver.job.leave(name, name, driver.now)
    driver.beat("c")
    driver.tick_at(70.9)
    assert driver.job.take_effects().over is None
    driver.beat("c")
    driver.tick_at(71.0)
    over = driver.job.take_effects().over
    assert over.failed == grouped
    assert ("no other has come for 60 s" if grouped else FINISHED) in over.why


@pytest.mark.parametrize(("steps", "having"), [(1, "bc"), (2, "a")])
def test_groups_to_which_two_managers_gave_one_number_have_states_of_their_own(steps, having):
    """Who comes back with a state of the other one takes theirs, even with as many steps, or gives its own.

    Nor is its state refused for fewer steps than this manager's attempt of that number began with.
    """
    driver = running("a", "b", "c", total=30)
    assert driver.job.recover("a", "a", 1, driver.now) == 2
    driver.meet("a", "b", "c", attempt=2, steps=1, formed=1)
    assert driver.job.recover("a", "a", 2, driver.now) == 3
    driver.arrive("a", 3, steps - 1, 2, formed_by="0")
    assert driver.job.recover("a", "a", 3, driver.now) == 4
    driver.arrive("a", 4, steps, 2, formed_by="0")
    driver.meet("b", "c", attempt=4, steps=1, formed=2)
    source = driver.seat("a")[3]
    assert "abc"[source] in having
    assert {name for name in "abc" if not driver.seat(name)[4]} == set(having)


def test_a_state_that_is_written_down_counts_while_it_is_the_newest():
    """Groups are formed for it until then, in which nothing is trained; once it is, nothing is planned."""
    driver = running("a", "b")
    driver.job.operations.keep(driver.now)
    driver.finish("a")
    driver.finish("b")
    assert driver.must("a") == 2
    driver.meet("a", "b", attempt=2, steps=1, formed=1)
    assert driver.answered("a").seat.keep
    for attempt, formed, kept in ((3, {"a": (1, 2), "b": (2, 2)}, "a"), (4, {"a": (2, 3), "b": (2, 3)}, "b")):
        assert driver.job.recover("a", "a", attempt - 1, driver.now) == attempt
        assert driver.job.state == "recovering"
        for name, state in formed.items():
            driver.arrive(name, attempt, *state, kept=name == kept)
        if attempt == 3:
            assert driver.answered("b").seat.keep
    assert driver.job.state == "paused"
    assert driver.answered("a") is None
    driver.job.operations.resume(driver.now)
    assert not driver.answered("a").seat.keep


def test_wrong_calls_are_refused():
    """With what is wrong, and what is allowed."""
    driver = running("a")
    driver.finish("a")
    driver.job.recover("a", "a", 1, driver.now)
    driver.arrive("a", 2, 1, 1)
    driver.job.recover("a", "a", 2, driver.now)
    with pytest.raises(InvalidRequestError, match="iteration 0: the state of attempt 2 has had 1 steps"):
        driver.arrive("a", 3, 0, 2)
    driver = Meeting("a", "b")
    assert driver.must("a") == 1
    with pytest.raises(InvalidRequestError, match="store '': must be HOST:PORT"):
        driver.job.rewind("a", "a", 1, 0, 0.0)
    with pytest.raises(InvalidRequestError, match="store 'x:70000': must be HOST:PORT"):
        driver.job.rewind("a", "a", 1, 0, 0.0, store="x:70000")
    with pytest.raises(InvalidRequestError, match="'formed_group', but 'c' names 'fixed_group'"):
        driver.job.join("c", "c", Bounds(), 0.0, exchange=FIXED_GROUP)
    with pytest.raises(InvalidRequestError, match="belongs to bsp, but the mode is asp"):
        Driver("a", exchange=FORMED_GROUP, synchronisation=Synchronisation("asp"))
