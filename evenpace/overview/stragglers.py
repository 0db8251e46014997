"""Who slows whom: verdicts on workers from their last iterations, with the reason in words.

All comparisons are of medians or of how often something was so, since single iterations are noisy.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evenpace.overview import phrases
from evenpace.overview.statistics import Array, median, others_median

KINDS = ("chronic", "passing", "leader", "even")
_CHRONIC, _PASSING, _LEADER, _EVEN = range(4)

SLOWER = 1.25  # times as long per sample as the others; less is in the range of usual differences
_NEARLY_ALWAYS = 0.8  # of the iterations: a straggler may have a good moment now and then
_ENOUGH = 10  # iterations, below which nothing is called chronic
_BELOW_BEST = 1.4  # times slower than at its best; noise of 15% alone makes a best 1.25 times the usual
_LASTING = 5  # iterations that it must have lasted: less is a hiccup
_FASTER = 1.1  # times as fast as the others' median, for the fastest to be worth a name
_TAKEN = 0.1  # share of its CPUs that others take, which is worth saying


@dataclass(frozen=True, slots=True)
class Verdicts:
    """On all workers, in their order; all arrays are (workers,).

    Attributes:
        kinds: Indices into `KINDS`.
        ratios: Time per sample relative to the others' median; NaN: not known.
        slower: In how many of the iterations a worker was slower than others.
        seen: How many it took part in.
        runs: For how many iterations up to the last it has been slower than at its best.
        below_best: By how many times, over these.
        taken: Median share of its CPUs that others take, over these; NaN: not known.
    """

    kinds: NDArray[np.int64]
    ratios: Array
    slower: NDArray[np.int64]
    seen: NDArray[np.int64]
    runs: NDArray[np.int64]
    below_best: Array
    taken: Array

    def counts(self) -> dict[str, int]:
        """How many workers are what."""
        counted = np.bincount(self.kinds, minlength=len(KINDS)).tolist()
        return dict(zip(KINDS, counted, strict=True))

    def text(self, worker: int) -> str:
        """Why a worker is what it is."""
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
        return "keeps pace with the others"


def judge(per_sample: Array, rates: Array, best: Array, cpu_usages: Array) -> Verdicts:
    """Judge workers by their last iterations.

    Args:
        per_sample: Seconds, (iterations, workers); NaN: it had no sample.
        rates: How fast each was, whatever its batch size; likewise. See `best.rates`.
        best: Of all that was seen of each, (workers,).
        cpu_usages: Share that others take, (iterations, workers).
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
    kinds[runs >= _LASTING] = _PASSING
    kinds[(seen >= _ENOUGH) & (ratios >= SLOWER) & (slower >= _NEARLY_ALWAYS * seen)] = _CHRONIC
    return Verdicts(kinds, ratios, slower, seen, runs, below_best, taken)


def balanced(size: float, even: float, won: float | None) -> str:
    """What the balancer did about a worker, in words.

    Args:
        size: Samples that it takes.
        even: That it would take if all took the same.
        won: Seconds by which it would take longer with these; None: not known.
    """
    if abs(size - even) < 1:
        return f"takes an even share, {phrases.samples(size)} samples"
    text = f"takes {phrases.samples(size)} instead of {phrases.samples(even)} samples"
    if won is None or won == 0:
        return text
    if won > 0:
        return f"{text}, which saves it {phrases.seconds(won)} per iteration"
    return f"{text}, {phrases.seconds(-won)} more per iteration for the others' sake"


def _steadied(values: Array) -> Array:
    """Each with the median of itself and its neighbours, so that one good iteration ends no bad time.

    The last has but one neighbour that is known, and stands as it is.
    """
    if len(values) < 3:
        return values
    steady = values.copy()
    before, here, after = values[:-2], values[1:-1], values[2:]
    middle = np.maximum(np.minimum(before, here), np.minimum(np.maximum(before, here), after))
    steady[1:-1] = np.where(np.isnan(middle), here, middle)
    return steady


def _lasting(values: Array, least: float) -> NDArray[np.int64]:
    """For how many of the last rows each column has been at least so much; gaps do not count against it."""
    if not len(values):
        return np.zeros(values.shape[1], dtype=np.int64)
    backwards = values[::-1]
    ended = backwards < least  # NaN has not ended it
    length = np.where(ended.any(axis=0), ended.argmax(axis=0), len(values))
    known: Array = np.cumsum(~np.isnan(backwards), axis=0)
    lasting = np.where(length > 0, known[np.maximum(length - 1, 0), np.arange(values.shape[1])], 0)
    return lasting.astype(np.int64)


def _over_runs(values: Array, runs: NDArray[np.int64]) -> Array:
    """The median of each column's last rows, as many as its run is long; NaN where that is 0."""
    result = np.full(values.shape[1], np.nan)
    lasting: Sequence[int] = np.flatnonzero(runs >= _LASTING).tolist()
    if lasting:
        part = values[:, lasting].copy()
        ages = np.arange(len(values))[::-1][:, None]
        part[ages >= runs[lasting][None, :]] = np.nan
        result[lasting] = median(part)
    return result
