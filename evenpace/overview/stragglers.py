"""Verdicts on workers from their last iterations, stragglers above all, with the reason in words.

Single iterations are noisy, so medians are compared, and the share of iterations in which a condition held.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evenpace.overview import phrases
from evenpace.overview.statistics import Array, median, others_median

KINDS = ("chronic", "passing", "leader", "even")
_CHRONIC, _PASSING, _LEADER, _EVEN = range(4)

SLOWER = 1.25  # ratio of a straggler's time per sample to the others' median, at least
_NEARLY_ALWAYS = 0.8  # share of iterations in which a chronic straggler is slower, at least
_ENOUGH = 10  # iterations, below which no worker is called chronic or the leader
_BELOW_BEST = 1.4  # ratio of a passing straggler's best rate to its rate; noise of 15% alone gives 1.25
_LASTING = 5  # iterations for which a passing straggler is slower, at least: less is a hiccup
_WAITS = 0.1  # share of its time that a worker waits beyond the others' median: then it slows nobody
_FASTER = 1.1  # ratio of the leader's speed to the others' median, at least
_TAKEN = 0.1  # share of a worker's CPUs that others take, from which on the text has it


@dataclass(frozen=True, slots=True)
class Verdicts:
    """Verdicts on all workers, in their order; all arrays are (workers,)."""

    kinds: NDArray[np.int64]  # indices into `KINDS`
    ratios: Array  # time per sample relative to the others' median; NaN where it is not known
    slower: NDArray[np.int64]  # number of iterations in which the worker was slower than the others
    seen: NDArray[np.int64]  # number of iterations in which it had samples
    # Number of iterations, up to the last, for which it has been slower than at its best.
    runs: NDArray[np.int64]
    below_best: Array  # median ratio of its best rate to its rate over these; NaN where there are too few
    taken: Array  # median share of its CPUs that others take, over these; NaN where it is not known

    def counts(self) -> dict[str, int]:
        """Return the number of workers of each kind."""
        counted = np.bincount(self.kinds, minlength=len(KINDS)).tolist()
        return dict(zip(KINDS, counted, strict=True))

    def text(self, worker: int) -> str:
        """Return the reason for a worker's verdict, in words."""
        kind, seen = int(self.kinds[worker]), int(self.seen[worker])
        ratio = float(self.ratios[worker])
        if kind == _CHRONIC:
            return (
                f"takes {phrases.times(ratio)} times as long per sample as the others' median, "
                f"in {int(self.slower[worker])} of the last {seen} iterations"
            )
        if kind == _PASSING:
            text = (
                f"{phrases.times(float(self.below_best[worker]))} times slower than at its best "
                f"for {int(self.runs[worker])} iterations"
            )
            taken = float(self.taken[worker])
            return f"{text}; others take {taken:.0%} of its CPUs" if taken >= _TAKEN else text
        if kind == _LEADER:
            return f"the fastest: {phrases.times(1 / ratio)} times as fast as the others' median"
        if not seen:
            return "has had no samples of late"
        if not np.isfinite(ratio):
            return "has nobody to be compared with"
        if seen < _ENOUGH:
            return f"too early to tell, after {seen} iteration{'s' if seen > 1 else ''}"
        if ratio >= _FASTER:
            return f"takes {phrases.times(ratio)} times as long per sample as the others' median"
        return "keeps pace with the others"


def judge(per_sample: Array, rates: Array, best: Array, cpu_usages: Array, waiting: Array) -> Verdicts:
    """Judge workers by their last iterations.

    Args:
        per_sample: Seconds per sample, (iterations, workers); NaN where a worker had no sample.
        rates: Speeds relative to the workers' time curves, as `best.rates` returns them, likewise.
        best: Each worker's best rate over the whole job, (workers,).
        cpu_usages: Share of each worker's CPUs that others take, (iterations, workers).
        waiting: Share of each iteration that a worker waited for others, (iterations, workers).
    """
    relative = per_sample / others_median(per_sample)
    ratios = median(relative)
    seen = (~np.isnan(per_sample)).sum(axis=0)
    slower = (relative >= SLOWER).sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        behind = best / _steadied(rates)
    runs = _lasting(behind, _BELOW_BEST)
    below_best, taken = _over_runs(behind, runs), _over_runs(cpu_usages, runs)
    kinds = np.full(per_sample.shape[1], _EVEN)
    if np.isfinite(ratios).any():
        fastest = int(np.nanargmin(ratios))
        if ratios[fastest] <= 1 / _FASTER and seen[fastest] >= _ENOUGH:
            kinds[fastest] = _LEADER
    waits = _over_runs(waiting - others_median(waiting), runs) > _WAITS
    kinds[(runs >= _LASTING) & ~waits] = _PASSING
    kinds[(seen >= _ENOUGH) & (ratios >= SLOWER) & (slower >= _NEARLY_ALWAYS * seen)] = _CHRONIC
    return Verdicts(kinds, ratios, slower, seen, runs, below_best, taken)


def balanced(size: float, even: float, won: float | None) -> str:
    """Return what the balancer did about a worker, in words.

    Args:
        size: Samples that it takes.
        even: Samples that it would take with an even split.
        won: Seconds by which it would take longer with an even split; None where it is not known.
    """
    if abs(size - even) < 1:
        return f"takes an even share, {phrases.samples(size)} samples"
    text = f"takes {phrases.samples(size)} instead of {phrases.samples(even)} samples"
    if won is not None and won > 0 and size < even:
        return f"{text}, which saves it {phrases.seconds(won)} per iteration"
    if won is not None and won < 0 and size > even:
        return f"{text}, {phrases.seconds(-won)} more per iteration for the others' sake"
    return text


def _steadied(values: Array) -> Array:
    """Replace each value by the median of itself and its two neighbours in its column.

    One fast iteration then does not end a slow period. The first and the last row, which have one neighbour
    only, stay as they are.
    """
    if len(values) < 3:
        return values
    steady = values.copy()
    before, here, after = values[:-2], values[1:-1], values[2:]
    middle = np.maximum(np.minimum(before, here), np.minimum(np.maximum(before, here), after))
    steady[1:-1] = np.where(np.isnan(middle), here, middle)
    return steady


def _lasting(values: Array, least: float) -> NDArray[np.int64]:
    """Return for how many of the last rows each column has been at least `least`; NaN does not end that."""
    if not len(values):
        return np.zeros(values.shape[1], dtype=np.int64)
    backwards = values[::-1]
    ended = backwards < least  # False for NaN
    length = np.where(ended.any(axis=0), ended.argmax(axis=0), len(values))
    known: Array = np.cumsum(~np.isnan(backwards), axis=0)
    lasting = np.where(length > 0, known[np.maximum(length - 1, 0), np.arange(values.shape[1])], 0)
    return lasting.astype(np.int64)


def _over_runs(values: Array, runs: NDArray[np.int64]) -> Array:
    """Return the median of each column over its run; NaN where the run is shorter than `_LASTING`.

    Args:
        values: (rows, columns).
        runs: Number of last rows in each column's run, (columns,).
    """
    result = np.full(values.shape[1], np.nan)
    lasting: Sequence[int] = np.flatnonzero(runs >= _LASTING).tolist()
    if lasting:
        part = values[:, lasting].copy()
        ages = np.arange(len(values))[::-1][:, None]
        part[ages >= runs[lasting][None, :]] = np.nan
        result[lasting] = median(part)
    return result
