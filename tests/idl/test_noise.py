"""The noise of gradients as a value: its scale, the interval of that, and what follows from it."""

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from idl.noise import Noise

SIZES = st.floats(1, 1e6)


@given(st.floats(1e-6, 1e6), st.floats(0, 1e6), SIZES, SIZES)
def test_efficiency_is_polluxs(sqr, var, batch, baseline):
    """It is (φ + M₀)/(φ + M): 1 at the baseline, falling with the batch, and M₀/M without noise."""
    noise = Noise(sqr, var)

    assert noise.efficiency(batch, baseline) == pytest.approx((var / sqr + baseline) / (var / sqr + batch))
    assert noise.efficiency(baseline, baseline) == 1
    assert Noise(sqr, 0.0).efficiency(batch, baseline) == baseline / batch


@pytest.mark.parametrize(
    ("sqr", "var", "scale", "efficiency", "similarity"),
    [
        (2.0, 64.0, 32.0, 2 / 3, 1 / 3),
        (0.0, 1.0, math.inf, 1.0, 0.0),
        (-1.0, 1.0, math.inf, 1.0, 0.0),
        (1.0, 0.0, 0.0, 0.5, 1.0),
        (1.0, -1.0, 0.0, 0.5, 1.0),
        (1.0, math.inf, math.inf, 1.0, 0.0),
        (math.inf, 1.0, 0.0, 0.5, 1.0),
        (0.0, 0.0, math.nan, math.nan, math.nan),
        (-1.0, -1.0, math.nan, math.nan, math.nan),
        (math.nan, 1.0, math.nan, math.nan, math.nan),
        (1.0, math.nan, math.nan, math.nan, math.nan),
        (math.inf, math.inf, math.nan, math.nan, math.nan),
    ],
)
def test_values_with_and_without_a_ratio(sqr, var, scale, efficiency, similarity):
    """No positive sqr is a noise scale without end, no positive var is none, and NaN where neither is.

    Similarity, the cosine of two halves of a batch, is 1/(1 + 2φ/B).
    """
    noise = Noise(sqr, var, 0.1, 0.1)

    assert (noise.scale, noise.efficiency(64, 32), noise.similarity(32)) == pytest.approx(
        (scale, efficiency, similarity), nan_ok=True
    )
    low, high = noise.interval()
    assert 0 <= low <= high
    if not math.isnan(scale):
        assert high >= scale or not (math.isfinite(sqr) and math.isfinite(var))


@pytest.mark.parametrize(
    ("noise", "interval", "known"),
    [
        (Noise(2.0, 64.0), (32, 32), True),  # without errors
        (Noise(2.0, 0.0), (0, 0), True),
        (Noise(0.0, 2.0), (math.inf, math.inf), True),
        (Noise(0.0, 0.0), (0, math.inf), False),
        (Noise(1.0, 1.0, 0.2), (1 / 1.4, 1 / 0.6), True),  # with a fifth of error
        (Noise(1.0, 1.0, 0.4), (1 / 1.8, 5), False),
    ],
)
def test_a_noise_scale_is_known_to_a_factor_of_two(noise, interval, known):
    """Without errors the interval is the scale; with some it is known if it is narrow enough."""
    assert noise.interval() == pytest.approx(interval)
    assert noise.is_known == known


POSITIVE = st.floats(1e-3, 1e3)


@given(POSITIVE, POSITIVE, st.floats(0.001, 3), st.floats(0.001, 3), st.floats(-1, 1))
def test_an_intervals_ends_are_two_standard_errors_away(sqr, var, sqr_part, var_part, correlation):
    """At either end x, the difference of var and x sqr is twice its own standard error."""
    noise = Noise(sqr, var, sqr_part * sqr, var_part * var, correlation * sqr_part * sqr * var_part * var)
    low, high = noise.interval()

    assert low <= noise.scale * (1 + 1e-9)
    assert high >= noise.scale * (1 - 1e-9)
    assert (low == 0) == (2 * var_part >= 1)
    assert (high == math.inf) == (2 * sqr_part >= 1)
    assume(abs(2 * var_part - 1) > 0.01 and abs(2 * sqr_part - 1) > 0.01 and abs(correlation) < 0.99)
    for end in {low, high} - {0, math.inf}:
        variance = noise.var_error**2 - 2 * end * noise.covariance + (end * noise.sqr_error) ** 2
        assert (var - end * sqr) ** 2 == pytest.approx(4 * variance, rel=1e-3)


@given(POSITIVE, POSITIVE, st.floats(0, 0.6), SIZES, SIZES)
def test_the_efficiency_lies_in_its_interval(sqr, var, part, batch, baseline):
    """It is monotone in the noise scale, so that the ends of the one are those of the other."""
    noise = Noise(sqr, var, part * sqr, part * var)
    low, high = noise.efficiency_interval(batch, baseline)

    assert low <= noise.efficiency(batch, baseline) * (1 + 1e-9)
    assert high >= noise.efficiency(batch, baseline) * (1 - 1e-9)
    limits = sorted((1.0, baseline / batch))
    assert limits[0] * (1 - 1e-9) <= low <= high <= limits[1] * (1 + 1e-9)
