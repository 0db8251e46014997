"""Members that seemed to have died, and names that two incarnations want, worked out by hand."""

import pytest

from batchsize_manager.job.config import JobConfig
from idl.bounds import Bounds
from idl.errors import InvalidRequestError, NotMemberError, UnavailableError
from tests.batchsize_manager.job.driver import Beating, restored


def cut_off(driver, name):
    """Let a member's connection be broken for longer than the grace period."""
    driver.job.disconnect(name, name, driver.now)
    driver.now += 2.0
    driver.job.tick(driver.now)
    assert name not in driver.job.members


def rejoin(driver, name, incarnation):
    """Let another incarnation join under a name."""
    driver.job.join(name, incarnation, Bounds(), driver.now)


def test_a_member_that_was_only_cut_off_is_welcome_back():
    """Others do its part meanwhile; its report is answered with the next iteration's."""
    driver = Beating("a", "b", total=16)
    driver.beat("a", "b")
    driver.report("a", 0)
    cut_off(driver, "b")
    part = driver.next("a")
    assert (part.iteration, part.start, part.count) == (0, 8, 8)
    driver.report("b", 0)
    assert list(driver.job.members) == ["a", "b"]
    assert driver.span("b") is None
    driver.report_part("a", part)
    assert driver.span("a")[0] == driver.span("b")[0] == 1
    assert driver.span("a")[2] + driver.span("b")[2] == 16


def test_a_member_that_was_cut_off_is_welcome_back_to_a_manager_that_was_started_again():
    """It is no member before, and nobody waits for it; its name is another's who comes first."""
    driver = Beating("a", "b", "c", total=16)
    driver.beat("a", "b", "c")
    for name in "bc":
        cut_off(driver, name)
    driver.job = restored(driver.job, JobConfig(workers=3), now=driver.now)
    assert list(driver.job.members) == ["a"]
    driver.beat("b")
    assert list(driver.job.members) == ["a", "b"]
    assert driver.job.outbox.events[-1] == "b had not died; it is a member again"
    rejoin(driver, "c", "c2")
    with pytest.raises(NotMemberError):
        driver.beat("c")


@pytest.mark.parametrize("planned", [False, True])
def test_who_comes_back_to_a_later_iteration_without_it_has_all_begin_another_attempt(planned):
    """With lookahead: the others could not end what was planned without it, nor it be planned for before."""
    driver = Beating("a", "b", lookahead=2, silence=4.0, promising="ab")
    for name in "ab":
        assert [part.iteration for part in driver.job.answer(name, name).ahead] == [1, 2]
    driver.report("a", 0)
    driver.now = 3.0
    driver.beat("b")
    driver.tick_at(5.0)
    if planned:
        driver.report("b", 0)
        assert driver.job.answer("b", "b", reported=0, known=2).assignment.count == 32
    driver.report("a", 0)
    events = ["a is silent; the others do its part meanwhile", "a is back"]
    if planned:
        assert driver.last_events(3) == [
            *events,
            "attempt 1 is needed: a is back, and has no part of a later iteration",
        ]
        driver.rewind("b", 1, 1)
        assert [driver.span(name) for name in "ab"] == [(1, 32, 16), (1, 48, 16)]
    else:
        assert driver.last_events(2) == events
        assert driver.span("a") == (1, 32, 16)


def test_who_asks_to_join_again_is_welcome_back_where_it_was_only_cut_off():
    """An earlier manager did not know it, and it asks the next one, which does."""
    driver = Beating("a", "b", total=16)
    driver.beat("a", "b")
    cut_off(driver, "b")
    driver.job.join("b", "b", Bounds(), driver.now, again=True)
    assert list(driver.job.members) == ["a", "b"]
    assert driver.last_events(2) == ["b had not died; it is a member again", "b is back"]
    driver.job.leave("b", "b", driver.now)
    with pytest.raises(NotMemberError, match="left"):
        driver.job.join("b", "b", Bounds(), driver.now, again=True)


def test_who_comes_back_to_an_earlier_iteration_may_repeat_its_report():
    """The others have gone back meanwhile: its answer may be lost as any other's."""
    driver = Beating("a", "b", total=16)
    driver.beat("a", "b")
    for _ in range(10):
        driver.finish("a", "b")
    driver.job.recover("a", "a", 0, driver.now)
    for name in "ab":
        driver.rewind(name, 1, 10)
    cut_off(driver, "b")
    driver.job.recover("a", "a", 1, driver.now)
    driver.rewind("a", 2, 5)
    driver.beat("b")
    driver.rewind("b", 2, 5)
    while driver.iteration("b") is None:
        driver.finish("a")
    part = driver.next("b")
    assert part.iteration < 10
    driver.report_part("b", part)
    driver.report_part("b", part)
    driver.finish("a")
    assert driver.iteration("b") == part.iteration + 1


def test_who_gave_its_name_to_another_does_not_come_back():
    """Nor who left, or was away for too long."""
    driver = Beating("a", "b", total=16)
    cut_off(driver, "b")
    rejoin(driver, "b", "other")
    with pytest.raises(NotMemberError):
        driver.beat("b")
    cut_off(driver, "a")
    driver.now += 1000.0
    with pytest.raises(NotMemberError):
        driver.beat("a")


def test_a_name_is_free_if_its_member_is_not_heard_again():
    """It may have died, and only the news of it be on its way: the newcomer is to try again."""
    driver = Beating("a", "b", total=16)
    driver.beat("a", "b")
    driver.now += 1.0
    for _ in range(5):
        with pytest.raises(UnavailableError, match="not known yet whether it lives"):
            rejoin(driver, "b", "other")
        driver.now += 1.0
    driver.job.disconnect("b", "b", driver.now)
    rejoin(driver, "b", "other")
    assert driver.job.members.known("b", "other")

    driver.job.heartbeat("b", "other", driver.job.attempts.number, driver.now)
    with pytest.raises(UnavailableError):
        rejoin(driver, "b", "third")
    driver.now += 10.0  # without any news of it
    rejoin(driver, "b", "third")
    assert driver.job.members.known("b", "third")


def test_a_name_is_taken_if_its_member_is_heard_again():
    """Two that live and claim one name: the newcomer is refused, with the reason."""
    driver = Beating("a", "b", total=16)
    driver.beat("a", "b")
    with pytest.raises(UnavailableError):
        rejoin(driver, "b", "other")
    driver.now += 1.0
    driver.beat("b")
    with pytest.raises(InvalidRequestError, match="is a member already"):
        rejoin(driver, "b", "other")


@pytest.mark.parametrize("lives", [False, True])
def test_a_name_is_kept_for_whoever_comes_back_to_a_manager_that_was_started_again(lives):
    """Another that claims it first waits until it is known; and has it if nothing is heard for seconds."""
    driver = Beating("a", "b", total=16)
    driver.finish("a", "b")
    driver.job = restored(driver.job, JobConfig(workers=2), now=driver.now)
    with pytest.raises(UnavailableError, match="not known yet whether it lives"):
        rejoin(driver, "b", "other")
    driver.now += 4.0
    if lives:
        driver.beat("b")
        with pytest.raises(InvalidRequestError, match="is a member already"):
            rejoin(driver, "b", "other")
        return
    with pytest.raises(UnavailableError):
        rejoin(driver, "b", "other")
    driver.now += 1.0
    rejoin(driver, "b", "other")
    assert driver.job.members.known("b", "other")


def test_who_comes_back_fits_into_the_batch_that_grows_with_it():
    """Where the batch follows the number of members, room is looked for in the one for all who are back."""
    names = "abcd"
    bounds = {name: Bounds(minimum=5) for name in names}
    driver = Beating(*names, total=32, bounds=bounds, scale_batch=True)
    for name in names:
        driver.job.disconnect(name, name, driver.now)
    driver.now += 2.0
    driver.job.tick(driver.now)
    assert list(driver.job.members) == []
    driver.beat(*names)
    assert list(driver.job.members) == list(names)
    for name in names:
        driver.rewind(name, 1, 0)
    assert sum(driver.span(name)[2] for name in names) == 32


def test_who_is_not_known_any_more_joins_again_and_recovers():
    """A manager with an older state takes back a worker, whose parts are void; not one that was taken out."""
    driver = Beating("a")
    older = driver.job.members.saved
    driver.join("b")
    driver.finish("a")
    part = driver.next("b")
    driver.job = restored(driver.job, JobConfig(), members=older)
    with pytest.raises(NotMemberError):
        driver.report_part("b", part)
    for _ in range(2):  # the call may be repeated
        driver.job.join("b", "b", Bounds(), 100.0, again=True)
    driver.rewind("a", driver.job.attempts.number, 0, 100.0)
    driver.report_part("b", part, attempt=driver.job.attempts.number)  # of an attempt that was lost
    assert driver.job.attempts.is_recovering
    for name in "ab":
        driver.rewind(name, driver.job.attempts.number, 0, 100.0)
    driver.finish("a", "b")
    assert driver.job.iterations.first_open == 1

    driver.job.leave("b", "b", 100.0)
    with pytest.raises(NotMemberError, match="b left"):
        driver.job.join("b", "b", Bounds(), 100.0, again=True)


def test_who_is_not_known_any_more_recovers_also_once_the_others_train_on():
    """It may have gone to another iteration than they did."""
    driver = Beating("a")
    older = driver.job.members.saved
    driver.join("b")
    driver.finish("a")
    driver.job = restored(driver.job, JobConfig(), members=older)
    driver.rewind("a", driver.job.attempts.number, 0, 100.0)
    driver.finish("a")
    assert driver.job.attempts.is_settled
    driver.job.join("b", "b", Bounds(), 100.0, again=True)
    assert driver.job.must_recover("b", "b") == driver.job.attempts.number


def full(*names, **config):
    """Return a job of workers that send heartbeats, whose batch has room for no other."""
    driver = Beating(*names, total=len(names), **config)
    driver.beat(*names)
    assert [driver.count(name) for name in names] == [1] * len(names)
    return driver


def test_who_finds_no_room_asks_again_while_a_member_is_leaving_or_may_be_dead():
    """It is refused once all the others have shown that they live and stay, and joins where one has gone."""
    driver = full("a", "b", "c")
    driver.now = 1.0
    with pytest.raises(UnavailableError, match=r"no room for 'd' yet, .* whether a, b, c will stay"):
        driver.join("d")
    driver.now = 1.5
    driver.beat("a", "b")
    with pytest.raises(UnavailableError, match="whether c will stay"):
        driver.join("d")
    driver.beat("c")
    with pytest.raises(InvalidRequestError, match="minimum batch sizes sum to 4"):
        driver.join("d")
    driver.job.operations.drain("c", driver.now)
    driver.job.disconnect("b", "b", driver.now)
    with pytest.raises(UnavailableError, match="whether a, b, c will stay"):
        driver.join("d")
    driver.now += 0.5
    driver.beat("a", "c")
    with pytest.raises(UnavailableError, match="whether b, c will stay"):
        driver.join("d")
    driver.finish("a", "c")
    driver.tick_at(3.0)
    driver.join("d")
    assert list(driver.job.members) == ["a", "d"]


def assert_released(driver, name):
    """Check that a worker is told that it is released, and why."""
    assert "others have its place" in driver.job.answer(name, name).released
    assert name not in driver.job.members


def test_who_was_drained_and_has_not_heard_of_it_is_released_by_the_next_manager():
    """It does not join again, though there would be room for it."""
    driver = Beating("a", "b")
    driver.next("b")
    driver.job.operations.drain("b", driver.now)
    driver.finish("b", "a")
    driver.job = restored(driver.job, JobConfig(workers=2), now=driver.now)
    driver.report("b", 0)
    driver.job.join("b", "b", Bounds(), driver.now, again=True)
    assert driver.job.answer("b", "b").released == "drained by an operator"
    assert list(driver.job.members) == ["a"]


def test_who_comes_back_from_a_drain_to_find_its_place_taken_is_released():
    """The manager's machine has lost power before the worker had heard that it was released."""
    driver = full("a", "b")
    driver.job.operations.drain("b", driver.now)
    driver.finish("a", "b")
    driver.join("c", beats=True)
    assert list(driver.job.members) == ["a", "c"]
    driver.job = restored(driver.job, JobConfig(workers=2), now=driver.now, released=())
    with pytest.raises(NotMemberError):
        driver.beat("b")
    with pytest.raises(UnavailableError):  # the others are not back yet
        driver.job.join("b", "b", Bounds(), driver.now, again=True)
    driver.now += 1.0
    driver.beat("a", "c")
    driver.job.join("b", "b", Bounds(), driver.now, again=True)
    assert_released(driver, "b")


def test_who_was_cut_off_and_finds_its_place_taken_is_released():
    """It learns so as it asks to join again."""
    driver = full("a", "b", "c")
    cut_off(driver, "b")
    driver.join("d", beats=True)
    with pytest.raises(UnavailableError):
        driver.beat("b")
    driver.now += 1.0
    driver.beat("a", "c", "d")
    with pytest.raises(NotMemberError, match="others have its place"):
        driver.beat("b")
    driver.job.join("b", "b", Bounds(), driver.now, again=True)
    assert_released(driver, "b")
