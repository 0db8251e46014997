"""Checks of values that came over the wire: an error names the value and the values that are allowed.

Thrift leaves a field that is missing, or that was sent with another type, as None.
"""

import math
from typing import Any

from idl.errors import InvalidRequestError

LONGEST_WAIT = 3600.0
"""The seconds for which an answer may be held back at most."""

_MAX_NAME = 200  # characters


def integer(name: str, value: Any, low: int, high: int = 2**62) -> int:
    """Return a value that must be an integer from `low` to `high`.

    Raises:
        InvalidRequestError: The value is not; as in all functions of this module.
    """
    if type(value) is not int or not low <= value <= high:
        raise InvalidRequestError(f"{name} {_show(value)}: must be an integer from {low} to {high}")
    return value


def number(name: str, value: Any, low: float, high: float) -> float:
    """Return a value that must be a finite number from `low` to `high`."""
    if type(value) is not float or not math.isfinite(value) or not low <= value <= high:
        raise InvalidRequestError(f"{name} {_show(value)}: must be a finite number from {low:g} to {high:g}")
    return value


def wait(value: Any, otherwise: float = LONGEST_WAIT) -> float:
    """Return the seconds for which a caller lets its answer be held back; `otherwise` if it names none."""
    return otherwise if value is None else number("wait", value, 0.0, LONGEST_WAIT)


def text(name: str, value: Any, high: int = _MAX_NAME) -> str:
    """Return a value that must be a string of 1 to `high` printable characters."""
    if type(value) is not str or not 0 < len(value) <= high or not value.isprintable():
        raise InvalidRequestError(
            f"{name} {_show(value)}: must be a text of 1 to {high} printable characters"
        )
    return value


def identity(value: Any) -> tuple[str, str, str]:
    """Return job, worker and incarnation of an `Identity` of common.thrift."""
    if value is None:
        raise InvalidRequestError("identity is missing")
    return (
        text("job", value.job),
        text("worker", value.worker),
        text("incarnation", value.incarnation),
    )


def _show(value: Any) -> str:
    if value is None:
        return "is missing or not of its type"
    shown = repr(value)
    return shown if len(shown) <= 80 else f"{shown[:77]}..."
