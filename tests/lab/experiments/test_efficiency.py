"""Hardware and statistical efficiency, worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.experiments import efficiency


def curve(*points):
    """Points of seconds, updates and accuracy."""
    return [dict(zip(("seconds", "updates", "accuracy"), point, strict=True)) for point in points]


@pytest.mark.parametrize(
    ("durations", "shown", "workers", "synchronous", "settle", "seconds"),
    [
        # Four workers push four gradients in an iteration of 2 s; the first, of 10 s, is left out.
        ((10.0, 1.0, 3.0), curve((0, 0, 0)), 4, True, 1, 0.5),
        # Without barriers, updates take a fifth of a second each from 10 at 3 s to 50 at 11 s.
        ((), curve((0, 0, 0), (3, 10, 0), (5, 18, 0), (11, 50, 0)), 2, False, 5, 0.2),
        # The snapshot before is taken where none has exactly the updates of the settling.
        ((), curve((0, 0, 0), (4, 40, 0)), 2, False, 10, 0.1),
    ],
)
def test_seconds_of_an_update(durations, shown, workers, synchronous, settle, seconds):
    """With barriers it takes its part of the iteration; without, updates are counted."""
    records = [{"duration": duration} for duration in durations]
    found = efficiency.per_update_seconds(records, shown, workers, synchronous, settle=settle)
    assert found == pytest.approx(seconds)


def test_updates_to_an_accuracy_lie_between_snapshots():
    """An accuracy of 60% is a quarter of the way from 50% at 100 updates to 90% at 200."""
    shown = curve((0, 0, 0.1), (10, 100, 0.5), (30, 200, 0.9), (50, 300, 0.7))

    assert efficiency.crossing(shown, 0.6) == (pytest.approx(125), pytest.approx(15))
    assert efficiency.crossing(shown, 0.9) == (pytest.approx(200), pytest.approx(30))
    assert efficiency.crossing(shown, 0.1) == (0, 0)
    assert efficiency.crossing(shown, 0.95) is None


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.floats(0.01, 1))
def test_a_target_is_crossed_where_the_first_point_reaches_it(accuracies, target):
    """The crossing lies after the last point that is too low, and not after the first that is not."""
    shown = curve(*((2.0 * i, 10.0 * i, accuracy) for i, accuracy in enumerate(accuracies)))
    found = efficiency.crossing(shown, target)
    first = next((i for i, accuracy in enumerate(accuracies) if accuracy >= target), None)

    assert (found is None) == (first is None)
    if found is not None and first is not None:
        assert 10 * max(first - 1, 0) <= found[0] <= 10 * first
        assert found[1] == pytest.approx(found[0] / 5)


def test_figures_are_shares_of_bsps():
    """A figure that is missing on either side has no share."""
    schemes = {
        "bsp": {"per_update_s": 2.0, "updates_to_target": 100, "seconds_to_target": None},
        "asp": {"per_update_s": 1.0, "updates_to_target": None, "seconds_to_target": 30},
    }

    assert efficiency.relative(schemes, "bsp") == {
        "bsp": {"per_update_s": 1.0, "updates_to_target": 1.0, "seconds_to_target": None},
        "asp": {"per_update_s": 0.5, "updates_to_target": None, "seconds_to_target": None},
    }
