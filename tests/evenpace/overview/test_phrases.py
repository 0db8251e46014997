"""Figures in words."""

import math

import pytest

from batchsize_manager.job.regrouping import GroupChange
from evenpace.overview import phrases
from idl.endings import FINISHED, GONE
from idl.exchange import FIXED_GROUP, FORMED_GROUP, PARAMETER_SERVER


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0123, "12.3 ms"),
        (0.63, "0.63 s"),
        (1.25, "1.2 s"),
        (12.4, "12 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (41 * 60, "41 min"),
        (3 * 3600, "3 h"),
        (3 * 3600 + 300, "3 h 5 min"),
        (86400 * 2 + 4 * 3600, "2 d 4 h"),
        (-90, "-2 min"),
        (0, "0 ms"),
    ],
)
def test_times_have_the_unit_that_suits_them(value, text):
    """Two or three digits are enough."""
    assert phrases.seconds(value) == text


@pytest.mark.parametrize(
    ("factor", "text"),
    [
        (1.9, "1.9× faster than even"),
        (12.3, "12× faster than even"),
        (1.07, "7% faster than even"),
        (1.01, "as fast as even"),
        (0.99, "as fast as even"),
        (0.97, "3% slower than even"),
        (0.5, "100% slower than even"),
    ],
)
def test_speedups_are_honest(factor, text):
    """A slower job is called so, and a difference too small to tell is called the same."""
    assert phrases.speedup(factor) == text


def test_headlines():
    """The headline has the speed-up and the time saved, or why there is none."""
    assert phrases.headline(4, None, 0.0) == "no iteration is complete yet"
    one, nothing = phrases.Estimate(1.0, 1.0, 1.0), phrases.Estimate(0.0, 0.2, 0.3)
    assert phrases.headline(1, one, nothing) == "one worker: nothing to balance"
    assert phrases.headline(4, one, nothing) == "as fast as even"
    faster, saved = phrases.Estimate(1.8, 1.9, 2.0), phrases.Estimate(2000.0, 41 * 60.0, 3000.0)
    assert phrases.headline(4, faster, saved) == "1.9× faster than even; 41 min saved, at least 33 min"
    slower, lost = phrases.Estimate(0.85, 0.9, 0.95), phrases.Estimate(-40.0, -30.0, -20.0)
    assert phrases.headline(4, slower, lost) == "11% slower than even; 30 s lost, at least 20 s"


def test_a_headline_says_what_balancing_would_win():
    """Of an even split: as one number, or the most that it may be; not where it would be little."""
    one, saved = phrases.Estimate(1.0, 1.0, 1.0), phrases.Estimate(20.0, 22.0, 24.0)
    known, wide = phrases.Estimate(2.0, 2.1, 2.2), phrases.Estimate(1.1, 1.8, 2.3)
    say = phrases.headline
    assert say(4, one, saved, known) == (
        "split evenly; 22 s saved; balanced would be 2.1× as fast: evenpace job policy JOB proportional"
    )
    assert (
        say(4, one, phrases.Estimate(0.0, 0.0, 0.0), wide)
        == "split evenly; balanced would be up to 2.3× as fast: evenpace job policy JOB proportional"
    )
    assert say(4, one, saved, phrases.Estimate(1.0, 1.05, 1.1)) == "as fast as even; 22 s saved"


@pytest.mark.parametrize(
    ("state", "reason", "text"),
    [
        ("ended", FINISHED, "ended well"),
        ("ended", GONE, "ended"),
        ("running", "", "running"),
        ("failed", "a shard is lost", "failed"),
    ],
)
def test_a_job_that_ended_well_is_said_to_have(state, reason, text):
    """Other states are named as the manager names them."""
    assert phrases.job_state(state, reason) == text


def test_a_headline_says_no_more_than_is_known():
    """A quantity not known well is given with a bound, the one nearer to an even split."""
    saved, lost = phrases.Estimate(90.0, 600.0, 900.0), phrases.Estimate(-900.0, -600.0, -90.0)
    wide = phrases.Estimate(1.3, 1.9, 2.6)
    assert phrases.headline(4, wide, saved) == (
        "about 1.9× faster than even, at least 1.3×; 10 min saved, at least 2 min"
    )
    wide = phrases.Estimate(0.5, 0.7, 0.8)
    assert phrases.headline(4, wide, lost) == (
        "about 43% slower than even, at least 25%; 10 min lost, at least 2 min"
    )
    either = phrases.Estimate(0.8, 1.1, 1.6), phrases.Estimate(-90.0, 90.0, 900.0)
    assert phrases.headline(4, *either) == "whether faster than even is not known yet"
    assert phrases.speedup_doubt(either[0]) == "from 25% slower to 1.6× faster"
    assert phrases.saved_doubt(either[1]) == "from 2 min lost to 15 min saved"
    assert phrases.headline(4, phrases.Estimate(1.8, 1.9, 2.0), either[1]) == (
        "1.9× faster than even; 2 min saved, from 2 min lost to 15 min saved"
    )


def test_what_is_known_well_has_no_bound():
    """Nor has a difference of less than a second, or one that rounding leaves nothing of."""
    assert phrases.speedup_doubt(phrases.Estimate(1.8, 1.9, 2.0)) == ""
    assert phrases.saved_doubt(phrases.Estimate(20.0, 22.0, 24.0)) == ""
    assert phrases.saved_doubt(phrases.Estimate(-0.3, 0.1, 0.5)) == ""
    assert phrases.saved_doubt(phrases.Estimate(67.0, 83.0, 120.0)) == ""


def test_what_json_lacks_is_none():
    """Neither NaN nor infinity gets through."""
    values = [phrases.number(value) for value in (1.5, math.nan, math.inf, -math.inf)]
    assert values == [1.5, None, None, None]


def test_the_work_of_other_batches():
    """One number where it is known to a tenth, else a range; half the batch where it would nearly do."""
    little, half = phrases.Estimate(0.5, 0.6, 0.7), phrases.Estimate(0.91, 0.95, 0.97)
    say = phrases.work_of_other_batches
    assert say(phrases.Estimate(1.76, 1.8, 1.84), little) == (
        "a batch twice as large would do 1.8 times the work per iteration"
    )
    assert say(phrases.Estimate(1.6, 1.8, 1.9), little) == (
        "a batch twice as large would do 1.6 to 1.9 times the work per iteration"
    )
    assert say(phrases.Estimate(1.0, 1.1, 1.1), half) == (
        "half the batch would do nearly the same work per iteration: 0.95 times"
    )


@pytest.mark.parametrize(
    ("measured", "scale", "text"),
    [
        (0, (math.nan, math.nan, math.nan), "not known yet, after 0 measured iterations"),
        (1, (0.0, 50.0, math.inf), "not known yet, after 1 measured iteration"),
        (12, (120.4, 900.0, math.inf), "not known well after 12 measured iterations: at least 120 samples"),
        (12, (0.0, 3.0, 60.0), "not known well after 12 measured iterations: at most 60 samples"),
        (1200, (20.0, 90.0, 1250.0), "not known well after 1,200 measured iterations: 20 to 1,250 samples"),
    ],
)
def test_a_noise_that_is_not_known_is_told_as_far_as_it_is(measured, scale, text):
    """The number of measured iterations, and the bounds that there are."""
    assert phrases.unknown_noise(measured, measured, phrases.Estimate(*scale)) == text


@pytest.mark.parametrize(
    ("there", "wanted", "over", "text"),
    [
        (6, 8, False, "6 of 8 workers, 2 awaited"),
        (0, 1, False, "0 of 1 workers, 1 awaited"),
        (1, 1, False, "1 worker"),
        (2000, 8, False, "2,000 workers"),
        (0, 2, True, "was for 2 workers"),
    ],
)
def test_the_number_of_workers(there, wanted, over, text):
    """It says who is awaited, where anybody is: not of a job that is over, nor more than were wanted."""
    assert phrases.members(there, wanted, over=over) == text


def test_how_gradients_meet():
    """In words, with the group that the manager has formed."""
    assert phrases.exchange(PARAMETER_SERVER, 3, None) == "parameter server"
    assert phrases.exchange(FIXED_GROUP, 0, None) == "all-reduce in a fixed group"
    said = "all-reduce in groups that the manager forms, "
    assert phrases.exchange(FORMED_GROUP, 3, 4) == f"{said}4 in the group of attempt 3"
    assert phrases.exchange(FORMED_GROUP, 3, None) == f"{said}which is being formed"


def test_what_changes_of_a_group_cost():
    """The last one, and the sum if there are several."""
    one, other = GroupChange(2, 5, 3, "c joins", 0.25, 1.0), GroupChange(3, 9, 2, "a left", 0.5, 2.0)
    last = "2 s at attempt 3, 0.5 s of it until the first plan (a left)"
    assert phrases.group_changes([]) == ""
    assert phrases.group_changes([other]) == last
    assert phrases.group_changes([one, other]) == f"3 s in the last 2; {last}"
