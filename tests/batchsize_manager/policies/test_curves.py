"""Time curves: fits that find the curve behind the times, and splits that no other beats."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from batchsize_manager.policies.curves import Curves, EqualTime, fit
from batchsize_manager.policies.measurements import Measurements
from batchsize_manager.policies.solver import split_evenly_in_time
from idl.bounds import Bounds
from tests.batchsize_manager.policies.brute_force import check_optimal

SIZES = np.array([8.0, 16, 32, 64, 96, 128, 192, 256])


def hinge(level, threshold, per_unit, counts):
    """Return times that are flat up to a threshold and then grow in a line."""
    return level + per_unit * np.maximum(0, np.asarray(counts, dtype=float) - threshold)


def curves(*workers):
    """Make curves of (level, threshold, per_unit), measured from 1 to 100 samples."""
    level, threshold, per_unit = np.array(workers, dtype=float).T
    one = np.ones(len(workers))
    return Curves(level, threshold, per_unit, one, 100 * one, 0.01 * one, 10 * one, 0.1 * per_unit)


# -- fit


@settings(deadline=None)
@given(
    st.floats(1e-4, 100),
    st.sampled_from([0.0, 32.0, 64.0, 96.0]),
    st.floats(0.002, 0.02),
    st.integers(0, 2**32),
)
def test_fit_finds_the_curve(level, threshold, slope, seed):
    """A curve is found from times with 1% noise between the measured sizes, best near the centre."""
    times = hinge(level, threshold, slope * level, SIZES)
    noisy = times * np.random.default_rng(seed).normal(1, 0.01, len(SIZES))
    found = fit(SIZES[None], noisy[None], np.full((1, len(SIZES)), 1e-4), np.array([64.0]))

    counts = np.arange(8, 257.0)
    errors = np.abs(found.times(counts) / hinge(level, threshold, slope * level, counts) - 1)
    assert errors.max() < 0.4
    assert errors[(counts > 48) & (counts < 85)].max() < 0.1


def test_fit_tells_overhead_from_saturation():
    """A line through an offset has no threshold; a flat part has one, and its level is found."""
    times = np.stack([hinge(1.0, 0, 0.01, SIZES), hinge(1.0, 96, 0.01, SIZES)])
    found = fit(np.stack([SIZES] * 2), times, np.full((2, len(SIZES)), 1e-4), np.array([128.0, 128.0]))

    assert found.threshold.tolist() == pytest.approx([0, 96], abs=1)
    assert found.level.tolist() == pytest.approx([1.0, 1.0], rel=0.01)
    assert found.per_unit.tolist() == pytest.approx([0.01, 0.01], rel=0.02)


def test_one_measurement_gives_the_usual_slope():
    """A single batch size is fitted by a time that grows with the batch."""
    variances = np.full((1, len(SIZES)), np.inf)
    variances[0, 3] = 1e-3
    found = fit(SIZES[None], np.full((1, len(SIZES)), 2.0), variances, np.array([64.0]))

    assert found.times(np.array([64.0]))[0] == pytest.approx(2.0, rel=0.01)
    assert 1.0 < found.times(np.array([32.0]))[0] < 1.6
    assert 2.6 < found.times(np.array([128.0]))[0] < 4.1
    assert (found.least[0], found.reach[0]) == (64, 64)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 500), st.floats(1e-3, 1e3)), min_size=1, max_size=10),
    st.integers(1, 600),
)
def test_fitted_times_only_grow(seen, centre):
    """A larger batch takes longer by any fitted curve, and `time` agrees with `times`."""
    sizes, times = np.array(seen, dtype=float).T
    found = fit(sizes[None], times[None], np.full((1, len(seen)), 1e-3), np.array([float(centre)]))
    counts = np.unique(np.geomspace(1, 2000, 60).astype(int))
    expected = found.times(counts.astype(float))

    assert (expected > 0).all()
    assert (np.diff(expected) > 0).all()
    equal_time = EqualTime(found)
    assert [equal_time.time(0, int(n)) for n in counts] == pytest.approx(expected.tolist())


# -- splits by curves


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.floats(0.01, 10),
            st.sampled_from([0, 2, 5]),
            st.floats(0.001, 10),
            st.integers(1, 9),
            st.integers(1, 3),
        ),
        min_size=1,
        max_size=3,
    ),
    st.integers(1, 24),
)
def test_optimal_against_brute_force(workers, total):
    """No other split within the bounds has a shorter longest time."""
    limits = [Bounds(low, 9) for *_, low in workers]
    assume(sum(bound.minimum for bound in limits) <= total <= 9 * len(limits))
    level, threshold, per_unit = np.array([its[:3] for its in workers], dtype=float).T
    least = np.array([float(its[3]) for its in workers])
    found = Curves(level, threshold, per_unit, least, np.maximum(least, 6.0), least, least, level)
    check_optimal(found, total, limits)


@given(
    st.lists(st.tuples(st.floats(1e-3, 9), st.floats(0, 20), st.floats(1e-3, 9)), min_size=1, max_size=4),
    st.floats(0.001, 0.999),
)
def test_a_tilted_curve_keeps_its_middle_and_never_falls(workers, probability):
    """The time at the middle is the same; times rise with the batch, and are above 0 for the smallest."""
    found = curves(*workers)
    tilted = found.tilted(probability)
    middle = found.middle
    np.testing.assert_allclose(tilted.fitted(middle), found.fitted(middle))
    assert (np.diff(tilted.fitted(np.array([[0.0], [1.0], [50.0], [900.0]])), axis=0) >= 0).all()
    assert (tilted.level > 0).all()


def test_the_slopes_error_is_that_of_the_noise():
    """Of many workers that are alike but for chance, as many slopes are too flat as there should be."""
    random = np.random.default_rng(3)
    times = hinge(0.5, 0.0, 0.02, SIZES) * np.exp(0.05 * random.standard_normal((2000, len(SIZES))))
    found = fit(np.tile(SIZES, (2000, 1)), times, np.full(times.shape, 0.05**2), np.full(2000, 64.0), 0.0)
    assert np.mean(found.tilted(0.1).per_unit > 0.02) == pytest.approx(0.1, abs=0.05)


def test_flat_parts_share_a_large_batch_quickly():
    """Workers that are all flat leave the split open; it is made without going sample by sample."""
    counts = split_evenly_in_time(EqualTime(curves(*[(1.0, 2**39, 1e-9)] * 4)), 2**38, [Bounds()] * 4)

    assert sum(counts) == 2**38
    assert max(counts) - min(counts) < 100


# -- measurements


def see(measurements, size, time, expected):
    """Add a time of the only worker at a batch size."""
    measurements.add(np.array([0]), np.array([float(size)]), np.array([time]), np.array([expected]))


def one_worker():
    """Return measurements of one worker: 64 samples in 1 s, 10 times."""
    measurements = Measurements()
    measurements.reindex([None])
    for _ in range(10):
        see(measurements, 64, 1.0, 1.0)
    return measurements


def test_times_of_a_size_are_averaged():
    """Repeats of a size are averaged with smaller variance; another size is another measurement."""
    measurements = one_worker()
    see(measurements, 64, 1.11, 1.0)
    see(measurements, 128, 2.0, 2.0)

    kept = measurements.repeats[0] > 0
    assert sorted(zip(measurements.sizes[0, kept], measurements.times[0, kept], strict=True)) == [
        (64, pytest.approx(1.01)),
        (128, 2.0),
    ]
    assert sorted(measurements.repeats[0, kept]) == [1, 11]


def test_the_oldest_size_makes_room():
    """A limited number of sizes is kept; the one not measured for longest goes."""
    measurements = one_worker()
    for size in range(100, 1100, 100):
        see(measurements, size, size / 64, size / 64)

    assert sorted(measurements.sizes[0]) == list(range(100, 1100, 100))
