"""Figures in plain words, short enough for one line; nothing here knows where the figures come from."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from idl.endings import FINISHED
from idl.exchange import FIXED_GROUP, FORMED_GROUP, PARAMETER_SERVER

_SAME = 0.02  # a speed-up this close to 1 is written as "as fast as even"
_PERCENT_BELOW = 1.2  # smaller factors read better as a percentage
_WORTH_SAYING = 1.0  # seconds saved or lost, below which a headline leaves them out
_WORTH_BALANCING = 1.1  # speed-up that balancing would bring, from which on a headline has it
_CERTAIN = 1.2  # ratio of the highest to the lowest estimate, up to which a speed-up is written as one number


_ONE_NUMBER = 0.1  # width of the interval of a work, up to which it is written as one number
_NEARLY_SAME = 0.9  # work of half the batch, from which on it is said to be nearly the same
# Iterations after which norms that are lacking are taken to be lacking for good; with Adam, pairs take 23.
_ENOUGH_TO_TELL = 30
_EXCHANGES = {
    PARAMETER_SERVER: "parameter server",
    FIXED_GROUP: "all-reduce in a fixed group",
    FORMED_GROUP: "all-reduce in groups that the manager forms",
}


class Estimate(NamedTuple):
    """Likely value of a quantity, with the lowest and the highest of its estimates."""

    least: float
    likely: float
    most: float


def number(value: float) -> float | None:
    """Return a number for JSON: None for NaN and infinity, which JSON lacks."""
    return float(value) if math.isfinite(value) else None


def seconds(value: float) -> str:
    """Return a time in words, from seconds: 12 ms, 0.63 s, 12 s, 41 min, 3 h 5 min, 2 d 4 h."""
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
    """Return a factor with two or three digits: 1.8, 2.4, 12."""
    return f"{factor:.1f}" if factor < 9.95 else f"{factor:,.0f}"


def samples(count: float) -> str:
    """Return a number of samples, whole from 10 on: 44, 1,250, 2.5."""
    return f"{count:,.0f}" if count >= 10 or count == round(count) else f"{count:.1f}"


def speedup(factor: float) -> str:
    """Return in words how fast a job is against an even split, from the ratio of the two speeds."""
    if abs(factor - 1) < _SAME:
        return "as fast as even"
    if factor < 1:
        return f"{1 / factor - 1:.0%} slower than even"
    if factor < _PERCENT_BELOW:
        return f"{factor - 1:.0%} faster than even"
    return f"{times(factor)}× faster than even"


def job_state(state: str, reason: str) -> str:
    """Return a job's state in words: as the manager names it, but "ended well" where all have finished."""
    return "ended well" if (state, reason) == ("ended", FINISHED) else state


def members(there: int, wanted: int, *, over: bool = False) -> str:
    """Return the number of a job's workers in words, and how many of those that it is to have are awaited.

    Args:
        there: Workers at present.
        wanted: Workers that the job is to have.
        over: Whether the job is over, so that nobody is awaited.
    """
    if over:
        return f"was for {wanted:,} worker{'' if wanted == 1 else 's'}"
    if there >= wanted:
        return f"{there:,} worker{'' if there == 1 else 's'}"
    return f"{there:,} of {wanted:,} workers, {wanted - there:,} awaited"


def exchange(name: str, attempt: int, size: int | None) -> str:
    """Return in words how a job's gradients meet.

    Args:
        name: One of `idl.exchange`.
        size: Members of the group that the manager has formed; None if there is none at present.
    """
    if name != FORMED_GROUP:
        return _EXCHANGES[name]
    formed = "which is being formed" if size is None else f"{size:,} in the group of attempt {attempt:,}"
    return f"{_EXCHANGES[name]}, {formed}"


def group_changes(changes: Sequence[Any]) -> str:
    """Return in words what changes of a group have cost; empty without any.

    Args:
        changes: `GroupChange`s of the wire, oldest first.
    """
    if not changes:
        return ""
    last = changes[-1]
    took, planned = seconds(last.until_step), seconds(last.until_plan)
    said = f"{took} at attempt {last.attempt:,}, {planned} of it until the first plan ({last.why})"
    if len(changes) == 1:
        return said
    return f"{seconds(sum(change.until_step for change in changes))} in the last {len(changes):,}; {said}"


def transfers(exposed: float, hidden: float | None) -> str:
    """Return what transfers take of a job whose bottleneck is communication, in words.

    Args:
        exposed: Share of an iteration that transfers take that are not hidden behind computing, 0 to 1.
        hidden: Share of the transfers' time that is, 0 to 1; None where it is not known.
    """
    known = "" if hidden is None else f", {hidden:.0%} of all transfers are hidden"
    return f"bound by communication: exposed transfers take {exposed:.0%} of an iteration{known}"


def work_of_other_batches(twice: Estimate, half: Estimate) -> str:
    """Return what a batch of another size would do, in words.

    Args:
        twice: Work of an iteration with twice the batch, relative to the present: 1 to 2.
        half: Work of one with half the batch, 0.5 to 1.
    """
    if half.least >= _NEARLY_SAME:
        return f"half the batch would do nearly the same work per iteration: {half.likely:.2f} times"
    return f"a batch twice as large would do {work(twice)} times the work per iteration"


def work(estimate: Estimate) -> str:
    """Return the work of a batch of another size: a factor, or a range where it is not known to a tenth."""
    least, most = times(estimate.least), times(estimate.most)
    one = estimate.most - estimate.least <= _ONE_NUMBER or least == most
    return times(estimate.likely) if one else f"{least} to {most}"


def unknown_noise(iterations: int, measured: int, scale: Estimate) -> str:
    """Return why the gradient noise is not known, in words.

    Args:
        iterations: Number of complete iterations.
        measured: Number of those whose gradients' norms are known.
        scale: The noise scale in samples, with the ends of its interval, which may be infinite.
    """
    if not measured and iterations >= _ENOUGH_TO_TELL:
        return "not measured: it takes two gradients in each step"
    after = f"after {measured:,} measured iteration{'' if measured == 1 else 's'}"
    bounded = math.isfinite(scale.most)
    if not scale.least > 0:  # or not a number
        return (
            f"not known well {after}: at most {samples(scale.most)} samples"
            if bounded
            else f"not known yet, {after}"
        )
    bounds = (
        f"{samples(scale.least)} to {samples(scale.most)}" if bounded else f"at least {samples(scale.least)}"
    )
    return f"not known well {after}: {bounds} samples"


def headline(workers: int, factors: Estimate | None, won: Estimate, balanced: Estimate | None = None) -> str:
    """Return what balancing brings, in one line; also how far that may be off, where it is not known well.

    Args:
        workers: Number of workers in the last iterations.
        factors: Speed-up of the last iterations; None without an iteration.
        won: Seconds saved over all iterations; negative: lost.
        balanced: Speed-up that balancing would bring, where the last iterations were split evenly.
    """
    if factors is None:
        return "no iteration is complete yet"
    if workers < 2 and abs(won.likely) < _WORTH_SAYING:
        return "one worker: nothing to balance"
    if balanced is not None and balanced.likely >= _WORTH_BALANCING:
        faster = f"balanced would be {would_be(balanced)} as fast"
        return f"split evenly{_in_all(won)}; {faster}: evenpace job policy JOB proportional"
    if factors.most <= _CERTAIN * factors.least:
        return f"{speedup(factors.likely)}{_in_all(won)}"
    if factors.least >= 1 + _SAME or factors.most <= 1 - _SAME:
        return f"about {speedup(factors.likely)}, {speedup_doubt(factors)}{_in_all(won)}"
    return "whether faster than even is not known yet"


def speedup_doubt(factors: Estimate) -> str:
    """Return how far a likely speed-up may be off, in words; empty where it is known well."""
    if factors.most <= _CERTAIN * factors.least:
        return ""
    least, most = (speedup(factor).removesuffix(" than even") for factor in (factors.least, factors.most))
    if factors.least >= 1 + _SAME:
        return f"at least {least.removesuffix(' faster')}"
    if factors.most <= 1 - _SAME:
        return f"at least {most.removesuffix(' slower')}"
    return f"from {least} to {most}"


def saved_doubt(won: Estimate) -> str:
    """Return how far the seconds that were saved or lost may be off, in words; empty where they are known."""
    sure, most = sorted((won.least, won.most), key=abs)
    if abs(most) <= _CERTAIN * abs(sure) or won.most - won.least < _WORTH_SAYING:
        return ""
    if sure * most <= 0:
        return f"from {saved(won.least)} to {saved(won.most)}"
    bound = seconds(abs(sure))
    return "" if bound == seconds(abs(won.likely)) else f"at least {bound}"


def saved(total: float) -> str:
    """Return seconds that balancing has saved, or lost where they are negative, in words: "41 min saved"."""
    return f"{seconds(abs(total))} {'lost' if total < 0 else 'saved'}"


def would_be(factor: Estimate) -> str:
    """Return a speed-up that is expected: a factor, or the highest where the estimates are far apart."""
    if factor.most <= _CERTAIN * factor.least:
        return f"{times(factor.likely)}×"
    return f"up to {times(factor.most)}×"


def _in_all(won: Estimate) -> str:
    if abs(won.likely) < _WORTH_SAYING:
        return ""
    return "; " + ", ".join(filter(None, (saved(won.likely), saved_doubt(won))))


def _two(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large} {large_unit}" + (f" {small} {small_unit}" if small else "")
