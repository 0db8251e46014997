"""Numbers as text for pages: an unknown value is a dash, never "nan"."""

import math
from collections.abc import Iterable
from datetime import UTC, datetime

UNKNOWN = "–"


def number(value: float | None) -> float:
    """Return the value, or NaN for None."""
    return math.nan if value is None else value


def text(value: float | None, form: str) -> str:
    """Return a number in a Python format; a dash if it is unknown."""
    return format(value, form) if math.isfinite(number(value)) else UNKNOWN


def seconds(value: float | None) -> str:
    """Return a time in seconds, without its unit."""
    return text(value, ".3f" if number(value) < 10 else ".1f")


def quantity(value: float | None) -> str:
    """Return a number with three significant digits, or all before the point: 0.0123, 4.57, 12,346."""
    return text(value, ",.0f" if abs(number(value)) >= 1000 else ".3g")


def span(value: float | None) -> str:
    """Return a duration with its unit: "0.4 s", "3 min 20 s", "2 h 5 min"."""
    if not math.isfinite(number(value)):
        return UNKNOWN
    assert value is not None
    sign, value = ("−" if value < 0 else ""), abs(value)
    if value < 59.5:
        return f"{sign}{value:.3g} s" if value >= 0.001 or not value else f"{sign}{value * 1e3:.2g} ms"
    if value < 3570:
        minutes, rest = divmod(round(value), 60)
        return f"{sign}{minutes} min {rest} s" if rest else f"{sign}{minutes} min"
    hours, minutes = divmod(round(value / 60), 60)
    return f"{sign}{hours} h {minutes} min" if minutes else f"{sign}{hours} h"


def moment(seconds: float | None) -> str:
    """Return a time, given in seconds since 1970, as UTC, which reads the same everywhere."""
    if seconds is None:
        return UNKNOWN
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def listed(pairs: Iterable[tuple[str, float | None]], form: str | None = None, unit: str = "") -> str:
    """Return names with their numbers, as quantities or in a format, separated by commas."""
    texts = ((name, quantity(value) if form is None else text(value, form)) for name, value in pairs)
    return ", ".join(f"{name} {shown}{unit}" for name, shown in texts)


def top(values: Iterable[float]) -> float:
    """Return the end of an axis from 0 that shows all `values`."""
    return 1.15 * max((x for x in values if math.isfinite(x)), default=0) or 1
