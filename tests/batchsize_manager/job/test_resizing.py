"""Jobs that get another number of workers: who leaves, who is awaited, and the cost of a change of group."""

import pytest

from batchsize_manager.job.config import JobConfig
from batchsize_manager.job.history import typical_speeds
from batchsize_manager.job.job import Job
from batchsize_manager.policies import make_policy
from idl.bounds import Bounds
from idl.errors import InvalidRequestError
from idl.exchange import FIXED_GROUP, FORMED_GROUP
from idl.plan import JobSpec
from tests.batchsize_manager.job.driver import Beating, Driver, restored
from tests.batchsize_manager.job.test_rendezvous import running


def took(driver, seconds):
    """Let workers finish an iteration in these batch processing times, by name, and get the next one."""
    for name in seconds:
        driver.report(name, driver.iteration(name), seconds[name])
    for name in seconds:
        driver.next(name)


def resize(driver, workers, *drained):
    """Resize a job now; return what was said."""
    return driver.job.operations.resize(workers, drained, driver.now)


def leaving(driver):
    """Return the names of the members that an operator has drained."""
    return {name for name, member in driver.job.members.by_name.items() if member.is_drained}


def test_the_slowest_are_drained_by_one_call_in_one_attempt():
    """They finish the iteration; the others meet once, and are two."""
    driver = running("a", "b", "c", "d", total=40)
    took(driver, {"a": 4.0, "b": 1.0, "c": 3.0, "d": 2.0})
    said = resize(driver, 2)
    assert said == (
        "an operator has resized the job from 4 to 2 workers, and drained a, c, from iteration 2 on"
    )
    for name in "abcd":
        assert driver.must(name) is None  # iteration 1 was given out before
    driver.finish(*"abcd")
    assert [driver.job.members.why_released(name, name) for name in "ac"] == ["drained by an operator"] * 2
    assert [driver.must(name) for name in "bd"] == [2, 2]
    driver.meet("b", "d", attempt=2, steps=2, formed=1)
    assert driver.seat("b") == (0, 2, "b:1", None, False)
    assert driver.span("d") == (2, 100, 20)
    assert driver.job.attempts.number == 2
    assert driver.job.members.wanted == 2


def test_speeds_are_medians_of_the_last_iterations():
    """One slow iteration makes nobody slow."""
    driver = Beating("a", "b", total=40)
    for seconds in (9.0, 1.0, 1.0):
        took(driver, {"a": seconds, "b": 2.0})
    assert typical_speeds(driver.job.history(0, 10)) == {"a": 20.0, "b": 10.0}
    resize(driver, 1)
    assert leaving(driver) == {"b"}


def test_those_that_are_not_known_to_be_fast_leave_first():
    """Silent ones, then the one that joined last of those without a measurement, then the slowest."""
    driver = Beating("a", "b", "c", promising="abc", total=40, silence=10.0)
    took(driver, {"a": 1.0, "b": 2.0, "c": 0.5})
    for name in "de":
        driver.join(name)
    driver.now = 11.0
    driver.beat("a", "b", "d", "e")
    driver.job.tick(11.0)
    assert driver.job.members.by_name["c"].suspended
    for workers, gone in ((4, "c"), (3, "ce"), (2, "ced"), (1, "cedb")):
        said = resize(driver, workers)
        assert f"drained {gone[-1]}," in said
        assert {"a", "b", "c", "d", "e"} - set(gone) == {
            name for name, member in driver.job.members.by_name.items() if not member.leaving
        }


def test_more_are_awaited_and_the_job_goes_on():
    """They may join at any time; once they are there, nobody is awaited."""
    driver = Beating("a", "b")
    assert resize(driver, 4) == ("an operator has resized the job from 2 to 4 workers, of whom 2 are awaited")
    for _ in range(3):
        driver.finish("a", "b")
    assert (driver.job.state, driver.iteration("a"), driver.job.members.wanted) == ("running", 3, 4)
    driver.join("c")
    assert "of whom" not in resize(driver, 3)
    assert leaving(driver) == set()


@pytest.mark.parametrize("exchange", ["parameter_server", FORMED_GROUP])
def test_a_job_that_has_not_begun_starts_with_the_new_number(exchange):
    """With those who are there, with fewer of them, or with more than were to come at first."""
    for workers, first in ((2, 2), (1, 1), (4, 4)):
        driver = Driver(total=40, exchange=exchange)
        driver.job = Job(JobSpec(1000, 40), JobConfig(workers=3), make_policy("even"))
        driver.join("a"), driver.join("b")
        resize(driver, workers)
        for name in "cd"[: max(0, first - 2)]:
            assert not driver.job.members.started
            driver.join(name)
        assert driver.job.members.started
        names = list(driver.job.members)[:first]
        if exchange == FORMED_GROUP:
            for name in list(driver.job.members):
                assert driver.job.must_recover(name, name) == 1
                driver.job.rewind(name, name, 1, 0, 0.0, store="a:1")
        assert [driver.count(name) for name in names] == [40 // first] * first
        assert list(driver.job.members) == names


def test_the_number_outlives_the_manager():
    """A manager that is started again with its own number of workers goes on with the operator's."""
    driver = Beating("a", "b", "c")
    driver.next("a")
    resize(driver, 5)
    assert restored(driver.job, JobConfig(workers=3)).members.wanted == 5
    assert restored(driver.job, JobConfig(workers=3), workers=None).members.wanted == 3


@pytest.mark.parametrize(
    ("workers", "drained", "why"),
    [
        (2, ("x",), "no worker 'x'"),
        (2, ("a", "b"), "drain a, b: of 3 workers 1 would leave for 2 to stay"),
        (3, ("a",), "drain a: of 3 workers none would leave for 3 to stay"),
        (1, ("a", "b"), "workers 1: those that stay cannot take the batch of 32 samples without a, b"),
        (24, (), "workers 24: a batch of 32 samples is too small for so many"),
    ],
)
def test_a_number_that_cannot_be_is_refused(workers, drained, why):
    """The message names the number or the names, and nothing was changed."""
    driver = Beating("a", "b", "c", bounds={"c": Bounds(10, 30)})
    driver.next("a")
    with pytest.raises(InvalidRequestError, match=why):
        resize(driver, workers, *drained)
    assert (leaving(driver), driver.job.members.wanted) == (set(), 3)
    resize(driver, 23)


def test_who_is_leaving_already_is_neither_counted_nor_drained_again():
    """Of four, one is leaving: for two to stay, one more has to go."""
    driver = running("a", "b", "c", "d", total=40)
    driver.job.operations.drain("d", driver.now)
    with pytest.raises(InvalidRequestError, match="'d' is leaving already"):
        resize(driver, 2, "d")
    assert "drained c," in resize(driver, 2)
    assert leaving(driver) == {"c", "d"}
    driver.finish(*"abcd")
    driver.meet("a", "b", attempt=2, steps=1, formed=1)
    assert driver.seat("a")[1] == 2


def test_a_fixed_group_keeps_its_size():
    """The message says how another is had."""
    job = Job(JobSpec(100, 10), JobConfig(workers=2), make_policy("even"))
    for name in "ab":
        job.join(name, name, Bounds(), 0.0, exchange=FIXED_GROUP)
    for workers in (1, 2, 3):
        with pytest.raises(InvalidRequestError, match=f"start the job again with {workers}"):
            job.operations.resize(workers, (), 0.0)


# -- what a change costs


def step(driver, now, *names):
    """Let workers finish an iteration at a time."""
    driver.now = now
    driver.finish(*names)
    for name in names:
        if name in driver.job.members:
            driver.next(name)


def test_a_change_costs_from_one_iteration_to_the_next():
    """The first group is no change; the rendezvous is a part of the cost, as is the iteration after it."""
    driver = running("a", "b", "c", total=30)
    changes = driver.job.regrouping.changes
    step(driver, 1.0, *"abc")
    resize(driver, 2, "c")
    step(driver, 2.0, *"abc")
    driver.now = 2.5
    driver.meet("a", "b", attempt=2, steps=2, formed=1)
    assert not changes
    step(driver, 4.0, "a", "b")
    (change,) = changes
    assert (change.attempt, change.iteration, change.size, change.why) == (2, 2, 2, "c is drained")
    assert (change.until_plan, change.until_step) == (0.5, 2.0)
    assert "took 2 s from the end of one iteration to that of the next, of which 0.5 s" in "".join(
        driver.last_events(1)
    )
    step(driver, 5.0, "a", "b")
    assert len(changes) == 1
    assert driver.job.outbox.tally.group_changes.total == 2.0


def test_a_change_that_another_follows_at_once_is_a_part_of_it():
    """No iteration was completed between them, so that their costs are one."""
    driver = running("a", "b", "c", total=30)
    step(driver, 1.0, *"abc")
    driver.now = 2.0
    driver.job.operations.remove("c", driver.now)
    driver.meet("a", "b", attempt=2, steps=1, formed=1)
    driver.now = 3.0
    driver.job.recover("a", "a", 2, driver.now)
    driver.meet("a", "b", attempt=3, steps=1, formed=2)
    step(driver, 5.0, "a", "b")
    (change,) = driver.job.regrouping.changes
    assert (change.attempt, change.until_plan, change.until_step) == (3, 2.0, 4.0)


def test_ranks_are_those_of_members_in_the_group():
    """A newcomer has none, nor has anybody while the group is formed."""
    driver = running("a", "b", total=30)
    assert driver.job.attempts.ranks == {"a": 0, "b": 1}
    driver.job.join("c", "c", Bounds(), 0.0, exchange=FORMED_GROUP)
    assert driver.job.attempts.ranks == {"a": 0, "b": 1}
    driver.finish("a", "b")
    assert driver.job.attempts.ranks == {}
