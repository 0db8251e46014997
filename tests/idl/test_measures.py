"""Derived quantities of columns, against the value types that define them too."""

import math

import numpy as np
import pytest

from idl.measures import goodput
from idl.noise import Noise, statistical_efficiency


def test_efficiency_of_arrays_is_that_of_the_noise():
    """Both definitions agree, batch by batch."""
    batches = np.array([10, 64, 1000])
    noise = Noise(0.5, 40.0)
    expected = [noise.efficiency(batch, 64) for batch in batches.tolist()]
    assert statistical_efficiency(noise.scale, batches, 64) == pytest.approx(expected, rel=1e-12)


def test_goodput_is_throughput_times_efficiency():
    """It is not a number where the efficiency is not, or where an iteration took no time."""
    found = goodput([100, 100, 100], [0.5, 0.5, 0.0], [0.25, math.nan, 1.0])
    assert found[0] == pytest.approx(50, rel=1e-12)
    assert np.isnan(found[1:]).all()
