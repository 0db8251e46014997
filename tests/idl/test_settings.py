"""What a configuration's fields allow is said once, and checked by that."""

from dataclasses import dataclass
from math import inf, nan
from typing import Annotated

import pytest

from idl.errors import InvalidRequestError
from idl.settings import Checked, Setting


@dataclass(frozen=True)
class Config(Checked):
    """A field with each kind of bound, and one without a setting."""

    low: Annotated[int, Setting("Help.", least=2)] = 2
    high: Annotated[int, Setting(most=5)] = 5
    open: Annotated[float, Setting(above=0, below=1)] = 0.5
    share: Annotated[float, Setting(above=0, most=1)] = 1.0
    endless: Annotated[float, Setting(least=0)] = 0.0
    finite: Annotated[float, Setting(least=0, below=inf)] = 0.0
    mode: Annotated[str, Setting("", choices=("a", "b"))] = "a"
    perhaps: Annotated[int | None, Setting(least=1)] = None
    free: int = -1


@pytest.mark.parametrize(
    "allowed",
    [
        {"low": 2, "high": 5},
        {"open": 1e-9, "share": 1.0},
        {"endless": inf, "finite": 1e300},
        {"mode": "b", "perhaps": 1, "free": -7},
    ],
)
def test_a_bound_itself_is_allowed_where_it_is_closed(allowed):
    """The configuration has the values."""
    assert {name: getattr(Config(**allowed), name) for name in allowed} == allowed


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("low", 1, "low 1: must be at least 2"),
        ("high", 6, "high 6: must be at most 5"),
        ("open", 0, "open 0: must be above 0 and below 1"),
        ("open", 1.0, "open 1.0: must be above 0 and below 1"),
        ("share", 1.5, "share 1.5: must be above 0 and at most 1"),
        ("endless", nan, "endless nan: must be at least 0"),
        ("finite", inf, "finite inf: must be at least 0 and below inf"),
        ("finite", nan, "finite nan: must be at least 0 and below inf"),
        ("mode", "c", "mode 'c': there are a, b"),
        ("perhaps", 0, "perhaps 0: must be at least 1"),
    ],
)
def test_an_error_names_the_field_the_value_and_what_is_allowed(name, value, said):
    """In one line."""
    with pytest.raises(InvalidRequestError) as error:
        Config(**{name: value})
    assert str(error.value) == said
