"""Numbers as text: times and quantities as readers see them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenpace.reports import numbers


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (0.0004, "0.4 ms"),
        (0.25, "0.25 s"),
        (59.4, "59.4 s"),
        (59.6, "1 min"),
        (200, "3 min 20 s"),
        (3600, "1 h"),
        (7500, "2 h 5 min"),
        (-90, "−1 min 30 s"),
        (None, "–"),
        (math.nan, "–"),
    ],
)
def test_a_stretch_of_time_has_the_unit_that_fits(seconds, words):
    """Durations have units from milliseconds to hours, and a dash if unknown."""
    assert numbers.span(seconds) == words


@pytest.mark.parametrize(
    ("value", "words"), [(0.01234, "0.0123"), (4.567, "4.57"), (864.6, "865"), (29370, "29,370"), (None, "–")]
)
def test_a_quantity_has_the_digits_that_matter(value, words):
    """Quantities have three significant digits, and no exponent for large numbers."""
    assert numbers.quantity(value) == words


@given(st.none() | st.floats(max_value=1e12, min_value=-1e12) | st.just(math.nan) | st.just(math.inf))
def test_no_number_is_nan_or_infinite_in_words(value):
    """A value that was not measured is a dash."""
    for words in (numbers.span(value), numbers.quantity(value), numbers.seconds(value)):
        assert "nan" not in words
        assert "inf" not in words
        assert (words == numbers.UNKNOWN) == (value is None or not math.isfinite(value))
