"""Figures in plain words, short enough for one line; nothing here knows where they come from."""

import math
from typing import NamedTuple

_SAME = 0.02  # a speedup this close to 1 is within what an estimate can tell
_PERCENT_BELOW = 1.2  # smaller factors read better as a percentage
_WORTH_SAYING = 1.0  # seconds
_CERTAIN = 1.2  # times as much at the most as at the least: a speedup is then told as one number


class Estimate(NamedTuple):
    """What a quantity is likely to be, and between which values it is almost surely."""

    least: float
    likely: float
    most: float


def number(value: float) -> float | None:
    """A number for JSON, which has neither NaN nor infinity."""
    return float(value) if math.isfinite(value) else None


def seconds(value: float) -> str:
    """A time: 12 ms, 0.63 s, 12 s, 41 min, 3 h 5 min, 2 d 4 h."""
    sign, value = ("-", -value) if value < 0 else ("", value)
    if value < 0.0995:
        return f"{sign}{value * 1e3:.3g} ms"
    if value < 59.5:
        return f"{sign}{value:.2g} s" if value < 9.95 else f"{sign}{value:.0f} s"
    minutes = round(value / 60)
    if minutes < 60:
        return f"{sign}{minutes} min"
    if minutes < 24 * 60:
        return sign + _two(minutes // 60, "h", minutes % 60, "min")
    hours = round(value / 3600)
    return sign + _two(hours // 24, "d", hours % 24, "h")


def times(factor: float) -> str:
    """A factor, of two or three digits: 1.8, 2.4, 12."""
    return f"{factor:.1f}" if factor < 9.95 else f"{factor:,.0f}"


def samples(count: float) -> str:
    """How many samples, whole where they are many: 44, 1,250, 2.5."""
    return f"{count:,.0f}" if count >= 10 or count == round(count) else f"{count:.1f}"


def speedup(factor: float) -> str:
    """How fast a job is against an even split."""
    if abs(factor - 1) < _SAME:
        return "as fast as even"
    if factor < 1:
        return f"{1 / factor - 1:.0%} slower than even"
    if factor < _PERCENT_BELOW:
        return f"{factor - 1:.0%} faster than even"
    return f"{times(factor)}× faster than even"


def headline(workers: int, factors: Estimate | None, saved: Estimate) -> str:
    """What balancing brings, in a line: at least that, where it is not known well.

    Args:
        workers: In the last iterations.
        factors: The speedup of late; None without an iteration.
        saved: Seconds, in all; negative: lost.
    """
    if factors is None:
        return "no iteration is complete yet"
    if workers < 2 and abs(saved.likely) < _WORTH_SAYING:
        return "one worker: nothing to balance"
    if factors.most <= _CERTAIN * factors.least:
        return _gain(factors.likely, saved.likely)
    if factors.least >= 1 + _SAME:
        return f"at least {_gain(factors.least, max(saved.least, 0.0))}"
    if factors.most <= 1 - _SAME:
        return f"at least {_gain(factors.most, min(saved.most, 0.0))}"
    return "whether faster than even is not known yet"


def _gain(factor: float, saved: float) -> str:
    text = speedup(factor)
    if abs(saved) < _WORTH_SAYING:
        return text
    return f"{text}; {seconds(abs(saved))} {'saved' if saved > 0 else 'lost'} so far"


def _two(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large} {large_unit}" + (f" {small} {small_unit}" if small else "")
