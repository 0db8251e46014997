"""Figures in words."""

import pytest

from evenpace.overview import phrases


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0123, "12.3 ms"),
        (0.63, "0.63 s"),
        (12.4, "12 s"),
        (59.6, "1 min"),
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
