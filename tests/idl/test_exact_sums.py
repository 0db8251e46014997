"""Sums in fixed point: the same integers whatever the order and the division, and the mean to rounding."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from idl.errors import InvalidRequestError
from idl.exact_sums import FixedPoint, add_to, mean_of
from idl.layout import Group, Layout

ELEMENTS = 4
LAYOUT = Layout("float32", "sgd", (Group(3, {"lr": 0.1}), Group(1, {}, statistics=True)))


def floats(dtype, limit):
    """Generate numbers of a dtype, subnormal ones included, whose absolute value is below a limit."""
    width = np.dtype(dtype).itemsize * 8
    return st.floats(-limit, limit, width=width, exclude_min=True, exclude_max=True)


@st.composite
def contributions(draw):
    """Generate micro-batches of a batch: (count, values), with values up to the limits."""
    dtype = draw(st.sampled_from(["float32", "float64"]))
    values = st.tuples(*[floats(dtype, 2.0**20)] * 3, floats(dtype, 2.0**31))
    one = st.tuples(st.integers(1, 2**12), values.map(lambda numbers: np.array(numbers, dtype=dtype)))
    return draw(st.lists(one, min_size=1, max_size=8))


def summed(parts, total):
    """Sum contributions, in their order."""
    sums = np.zeros(ELEMENTS, dtype=np.int64)
    for count, values in parts:
        add_to(sums, values, count, total, LAYOUT)
    return sums


@given(contributions(), st.randoms(), st.integers(0, 8))
def test_any_order_and_any_division_give_the_same_integers(parts, chance, cut):
    """Workers may have any of the micro-batches, in any order, and their sums may be added in any order."""
    total = sum(count for count, _ in parts)
    whole = summed(parts, total)
    mixed = [*parts]
    chance.shuffle(mixed)
    assert np.array_equal(whole, summed(mixed[:cut], total) + summed(mixed[cut:], total))


def test_many_elements_are_rounded_like_one():
    """They are added in blocks, the last of which is not full and is checked, too."""
    form, count = FixedPoint(100), 7
    values = np.random.default_rng(1).normal(size=40_000).astype(np.float32)
    sums = np.arange(len(values))
    form.add(sums, values, count)
    expected = [i + round(float(value) * count / form.unit) for i, value in enumerate(values)]
    assert sums.tolist() == expected
    values[-1] = 2.0**20
    with pytest.raises(InvalidRequestError, match="absolute value of 1"):
        form.add(sums, values, count)


@given(contributions())
def test_the_mean_is_that_of_exact_numbers_to_the_resolution(parts):
    """Nothing overflows below the limits, and each contribution is off by half a unit at most."""
    total = sum(count for count, _ in parts)
    mean = mean_of(summed(parts, total), total, LAYOUT)
    for element in range(ELEMENTS):
        expected = sum(count * Fraction(float(values[element])) for count, values in parts) / total
        unit = FixedPoint(total, statistics=element == 3).unit
        # One more rounding where a product of double precision has not all of the digits.
        off = Fraction(unit) * len(parts) / total + abs(expected) * Fraction(2) ** -50
        most = max(abs(float(values[element])) for _, values in parts)
        assert abs(Fraction(float(mean[element])) - expected) <= off + Fraction(most) * Fraction(2) ** -50


@pytest.mark.parametrize("total", [1, 2, 255, 256, 2**31])
@pytest.mark.parametrize("statistics", [False, True])
def test_a_whole_batch_of_the_largest_numbers_does_not_overflow(total, statistics):
    """The mean of a number just below the limit is this number, with either sign."""
    form = FixedPoint(total, statistics)
    largest = np.nextafter(np.float32(form.limit), np.float32(0))
    sums = np.zeros(2, dtype=np.int64)
    for count in (total - total // 2, total // 2):
        form.add(sums, np.array([largest, -largest]), count)
    assert np.sign(sums).tolist() == [1, -1]
    assert form.mean(sums).astype(np.float32).tolist() == [largest, -largest]


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (
            1,
            2.0**20,
            r"gradient .* of 1\.04858e\+06: .* \(--exact\) take numbers below 1\.04858e\+06",
        ),
        (1, -np.inf, "gradient .* of inf: .* below 1"),
        (1, np.nan, "gradient .* of nan: "),
        (1, 3e38, r"gradient .* of 3e\+38: "),
        (3, 2.0**31, r"statistic .* of 2\.14748e\+09: .* below 2\.14748e\+09"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_value(place, value, said):
    """The error has the value and the limit; with a weight of 0, any value is left out."""
    values = np.array([0, 1, 2, 2.0**30], dtype=np.float32)
    add_to(np.zeros(ELEMENTS, dtype=np.int64), values, 8, 8, LAYOUT)
    values[place] = value
    with pytest.raises(InvalidRequestError, match=said):
        add_to(np.zeros(ELEMENTS, dtype=np.int64), values, 1, 8, LAYOUT)
    sums = np.zeros(ELEMENTS, dtype=np.int64)
    add_to(sums, values, 0, 8, LAYOUT)
    assert not sums.any()
