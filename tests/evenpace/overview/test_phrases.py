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


E = phrases.Estimate
UNSURE = E(-90.0, 90.0, 900.0)


@pytest.mark.parametrize(
    ("workers", "speedup", "saved", "text"),
    [
        (4, None, 0.0, "no iteration is complete yet"),
        (1, E(1.0, 1.0, 1.0), E(0.0, 0.2, 0.3), "one worker: nothing to balance"),
        (4, E(1.0, 1.0, 1.0), E(0.0, 0.2, 0.3), "as fast as even"),
        (
            *(4, E(1.8, 1.9, 2.0), E(2000.0, 2460.0, 3000.0)),
            "1.9× faster than even; 41 min saved, at least 33 min",
        ),
        (
            *(4, E(0.5, 0.7, 0.8), E(-900.0, -600.0, -90.0)),
            "about 43% slower than even, at least 25%; 10 min lost, at least 2 min",
        ),
        (4, E(0.8, 1.1, 1.6), UNSURE, "whether faster than even is not known yet"),
        (4, E(1.8, 1.9, 2.0), UNSURE, "1.9× faster than even; 2 min saved, from 2 min lost to 15 min saved"),
    ],
)
def test_headlines(workers, speedup, saved, text):
    """The speed-up and the time saved, or why there is none; what is not known well with its nearer bound."""
    assert phrases.headline(workers, speedup, saved) == text


def test_what_is_known_well_has_no_bound():
    """Nor has a difference of less than a second, or one that rounding leaves nothing of."""
    assert phrases.speedup_doubt(E(0.8, 1.1, 1.6)) == "from 25% slower to 1.6× faster"
    assert phrases.speedup_doubt(E(1.8, 1.9, 2.0)) == ""
    for saved in (E(20.0, 22.0, 24.0), E(-0.3, 0.1, 0.5), E(67.0, 83.0, 120.0)):
        assert phrases.saved_doubt(saved) == ""


def test_the_work_of_other_batches():
    """One number where it is known to a tenth, else a range; half the batch where it would nearly do."""
    little, half = E(0.5, 0.6, 0.7), E(0.91, 0.95, 0.97)
    say = phrases.work_of_other_batches
    assert say(E(1.76, 1.8, 1.84), little) == (
        "a batch twice as large would do 1.8 times the work per iteration"
    )
    assert say(E(1.6, 1.8, 1.9), little) == (
        "a batch twice as large would do 1.6 to 1.9 times the work per iteration"
    )
    assert say(E(1.0, 1.1, 1.1), half) == (
        "half the batch would do nearly the same work per iteration: 0.95 times"
    )
