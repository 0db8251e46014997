"""Effects: each event's are taken once, and none is lost."""

import pytest

from idl.errors import InvalidRequestError
from idl.synchronisation import Synchronisation
from tests.batchsize_manager.job.driver import Beating, Driver


def test_effects_are_taken_once():
    """What the manager has done after an event is not to be done again after the next."""
    driver = Driver("a", "b", total=16)
    effects = driver.job.take_effects()
    assert [worker for _, worker in effects.log] == ["a", "b"]
    assert (effects.keep, effects.answer, effects.fit, effects.completed) == (True, True, False, [])
    assert not driver.job.take_effects()


def test_a_report_that_others_wait_for_has_no_effects_until_the_last():
    """Nobody can be answered, and nothing has to be kept, before the iteration is complete."""
    driver = Driver("a", "b", total=16)
    driver.job.take_effects()
    driver.finish("a")
    assert not driver.job.take_effects()
    driver.finish("b")
    effects = driver.job.take_effects()
    assert effects.completed == driver.job.history(0, 10)
    assert (effects.log, effects.keep, effects.answer, effects.fit) == ([], False, True, True)


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


def test_another_size_of_the_batch_has_to_be_kept():
    """The size changes with a plan, which may come long after the event that was logged."""
    driver = Driver("a", "b", total=16, scale_batch=True)
    for name in "ab":
        driver.next(name)  # what was given out stands
    driver.join("c")
    driver.job.take_effects()
    driver.finish("a", "b")
    effects = driver.job.take_effects()
    assert (effects.log, effects.keep) == ([], True)
    assert driver.job.planner.batches.last_change.size == 24


def test_members_that_wait_are_answered_when_an_attempt_begins_and_when_it_can_go_on():
    """Those that have reported wait, and would not learn of it otherwise."""
    driver = Driver("a", "b", total=16)
    driver.finish("a")
    driver.next("b")
    driver.job.take_effects()
    driver.job.recover("b", "b", 0, driver.now)
    effects = driver.job.take_effects()
    assert (effects.answer, effects.keep, driver.job.must_recover("a", "a")) == (True, True, 1)
    driver.job.rewind("b", "b", 1, 0, driver.now)
    assert driver.job.take_effects().answer
    assert driver.next("b") is not None
