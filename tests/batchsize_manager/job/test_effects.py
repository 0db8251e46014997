"""Effects: each event's are taken once, and none is lost."""

import pytest

from batchsize_manager.job.effects import Over
from idl.endings import FINISHED, GONE
from idl.errors import InvalidRequestError
from idl.exchange import FIXED_GROUP
from idl.synchronisation import Synchronisation
from tests.batchsize_manager.job.driver import Beating, Driver


def test_a_report_that_others_wait_for_has_no_effects_until_the_last():
    """Nobody can be answered, and nothing has to be kept, before the iteration is complete."""
    driver = Driver("a", "b", total=16)
    driver.job.take_effects()
    driver.finish("a")
    assert not driver.job.take_effects()
    driver.finish("b")
    effects = driver.job.take_effects()
    assert effects.completed == driver.job.history(0, 10)
    assert (effects.log, effects.state, effects.answer, effects.fit) == ([], None, True, True)


@pytest.mark.parametrize("mode", ["bsp", "ssp", "asp"])
def test_every_complete_iteration_is_among_the_effects(mode):
    """Also where one report completes several."""
    staleness = {"ssp": 5}.get(mode)
    driver = Driver("a", "b", total=16, synchronisation=Synchronisation(mode, staleness))
    completed = []
    for name in "aaabbab" if mode != "bsp" else "abababab":
        driver.finish(name)
        completed += driver.job.take_effects().completed
    assert completed == driver.job.history(0, 100)
    assert len(completed) >= 3


def test_an_event_that_is_refused_keeps_its_effects_for_the_next():
    """A member that seemed dead is one again, though what it asked for made no sense."""
    driver = Beating("a", "b", total=16)
    driver.next("a")
    driver.next("b")
    driver.job.recover("a", "a", 0, driver.now)
    assert driver.job.must_recover("b", "b") == 1
    driver.job.disconnect("b", "b", driver.now)
    driver.tick_at(2.0)
    driver.job.take_effects()
    with pytest.raises(
        InvalidRequestError, match="place 1000001: must be at most the dataset's size, 1000000"
    ):
        driver.job.rewind("b", "b", 1, 0, driver.now, (0, 10**6 + 1))
    assert ("b had not died; it is a member again", "b") in driver.job.take_effects().log


def test_the_last_member_that_goes_leaves_what_was_learned():
    """Also where the job goes on without members for long; its end comes once none are awaited."""
    driver = Driver("a", "b", total=16, keep=60.0)
    driver.finish("a", "b")
    for name, last in (("a", False), ("b", True)):
        driver.job.disconnect(name, name, driver.now)
        driver.tick_at(driver.now + 2.0)
        effects = driver.job.take_effects()
        assert (effects.learned, effects.over) == (last, None)
    driver.tick_at(driver.now + 61.0)
    effects = driver.job.take_effects()
    assert (effects.learned, effects.over) == (False, Over("all members have gone", failed=False))


@pytest.mark.parametrize(("failed", "why"), [(False, FINISHED), (True, GONE)])
def test_a_job_whose_last_worker_has_finished_has_ended_well(failed, why):
    """How those ended that left before does not matter: the others have done their part."""
    driver = Driver("a", "b", total=16)
    driver.job.leave("a", "a", driver.now, failed=not failed)
    assert driver.job.take_effects().over is None
    driver.job.leave("b", "b", driver.now, failed=failed)
    assert driver.job.take_effects().over == Over(why, failed=False)


@pytest.mark.parametrize("thaws", [False, True])
def test_a_job_has_ended_well_without_those_that_stay_frozen(thaws):
    """Nobody waits for them once they are taken out; one that has come back has to finish itself."""
    driver = Beating("a", "b", total=16, promising="ab", silence=10.0, absence=60.0, keep=600.0)
    driver.finish("a", "b")
    driver.finish("a")
    for driver.now in (5.0, 11.0, 30.0):
        driver.beat("a")
        driver.tick_at(driver.now)
    driver.finish("a")
    driver.job.leave("a", "a", driver.now)
    if thaws:
        driver.tick_at(31.0)
        driver.beat("b")
    driver.tick_at(driver.now + 60.0)
    over = driver.job.take_effects().over
    assert over == (None if thaws else Over(FINISHED, failed=False))


def test_a_job_that_cannot_go_on_is_over_with_what_it_has_learned():
    """Though members are left, and nothing was logged."""
    driver = Driver("a", "b", total=16, exchange=FIXED_GROUP)
    driver.job.take_effects()
    driver.job.recover("a", "a", 0, driver.now)
    effects = driver.job.take_effects()
    assert effects.over == Over("a cannot go on; restart the job from its checkpoint", failed=True)
    assert effects.learned


def test_answers_of_which_a_restarted_manager_must_know_are_given_after_the_write():
    """Those to newcomers and of attempts; a report is answered at once, since it can come again."""
    driver = Driver("a", "b", total=16)
    joined = driver.job.answer("a", "a", joins=True)
    assert (joined.assignment.iteration, joined.after_write) == (0, True)
    driver.finish("a")
    assert driver.job.answer("a", "a", reported=0) is None
    driver.finish("b")
    reported = driver.job.answer("a", "a", reported=0)
    assert (reported.assignment.iteration, reported.after_write) == (1, False)
    driver.job.recover("b", "b", 0, driver.now)
    recovers = driver.job.answer("a", "a", reported=0)
    assert (recovers.recover, recovers.assignment, recovers.after_write) == (1, None, True)


@pytest.mark.parametrize(
    ("iterations", "returns", "says"), [(2, False, True), (0, False, False), (2, True, False)]
)
def test_workers_that_end_at_different_iterations_are_named(iterations, returns, says):
    """Their models differ, although each has ended without an error; not so where one comes back."""
    driver = Driver("a", "b")
    for _ in range(3):
        driver.finish("a", "b")
    driver.next("a")
    driver.job.leave("a", "a", driver.now)
    for _ in range(iterations):
        driver.finish("b")
    if returns:
        driver.join("a", "again")
        driver.job.leave("a", "again", driver.now)
    driver.job.leave("b", "b", driver.now)
    assert driver.job.take_effects().over == Over(FINISHED, failed=False)
    said = [
        event for event in driver.job.outbox.events if event.startswith("a left by itself before iteration 3")
    ]
    assert len(said) == says
