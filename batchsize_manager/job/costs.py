"""Slices of equal cost: what samples cost that come next, and where in a batch a share of its cost ends.

Costs decide pace alone: a batch whose costs are not known is cut by samples.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from idl.bounds import Bounds
from idl.costs import Costs
from idl.cuts import Cuts

_HALVINGS = 50
_KEPT = 2**18  # samples of an epoch whose costs are kept, so that a job that goes back knows them
_EPOCHS = 6  # that are kept: small data sets' costs are told for several


class KnownCosts:
    """The costs of the samples of the next batches, as workers have told them.

    Args:
        mean: The mean cost of all samples; None in a job without costs.
    """

    def __init__(self, mean: float | None) -> None:
        self._mean = mean
        # By epoch: the position of the first, and costs.
        self._runs: dict[int, tuple[int, NDArray[np.uint32]]] = {}

    def take(self, told: Iterable[Costs]) -> None:
        """Take costs, each of which follows the last ones of its epoch, or is put in their place."""
        for one in told if self._mean is not None else ():
            start, costs = self._runs.get(one.epoch, (one.start, np.empty(0, np.uint32)))
            first = min(max(one.start - start, 0), len(costs))
            if not start <= one.start <= start + len(costs):
                start, first = one.start, 0
            costs = np.concatenate([costs[:first], np.maximum(one.array, 1)])[-_KEPT:]
            self._runs[one.epoch] = one.start + len(one.array) - len(costs), costs
            for old in sorted(self._runs)[:-_EPOCHS]:
                del self._runs[old]

    def of(self, epoch: int, start: int, total: int) -> NDArray[np.float64] | None:
        """Return the costs of a batch's samples over the mean of all samples, (total,); None if not known."""
        first, costs = self._runs.get(epoch, (0, np.empty(0, np.uint32)))
        if self._mean is None or not first <= start <= start + total <= first + len(costs):
            return None
        return costs[start - first : start - first + total] / self._mean


@dataclass(frozen=True)
class BatchCosts:
    """What the samples of a batch cost, over the mean of all samples, as they are computed.

    Attributes:
        values: (total,). In micro-batches that are padded, each has the cost of its micro-batch's dearest.
        padded: Whether a slice costs as much as its dearest sample for each: values ascend then.
    """

    values: NDArray[np.float64]
    padded: bool = False

    @classmethod
    def of(cls, costs: NDArray[np.float64], cuts: Cuts, *, is_sorted: bool) -> "BatchCosts":
        """Return the costs of a batch that is cut into micro-batches, or anywhere, sorted or not."""
        if not is_sorted:
            return cls(costs)
        costs = np.sort(costs)
        if cuts.size == 1:
            return cls(costs, padded=True)
        ends = [cuts.position(index + 1) for index in range(len(cuts))]
        return cls(np.repeat(costs[np.subtract(ends, 1)], np.diff([0, *ends])))

    def slice(self, first: int, count: int) -> float:
        """Return the cost of the samples from a position of the batch on."""
        part = self.values[first : first + count]
        return float(part[-1] * count if self.padded and count else part.sum())

    def cut(self, shares: Sequence[int], bounds: Sequence[Bounds], cuts: Cuts) -> list[int]:
        """Return the samples of slices with these shares of the cost, and bounds in units of the cuts."""
        if self.padded:
            return cut_by_padded_cost(self.values, shares, bounds)
        if cuts.size == 1:
            return cut_by_cost(self.values, shares, bounds)
        begins = [cuts.position(index) for index in range(len(cuts))]
        return cuts.counts(cut_by_cost(np.add.reduceat(self.values, begins), shares, bounds))


def cut_by_padded_cost(
    costs: NDArray[np.float64], shares: Sequence[int], bounds: Sequence[Bounds]
) -> list[int]:
    """Return the samples of consecutive slices that cost no more than their shares of one level, the lowest.

    A slice costs as much as its dearest sample for each of its samples.

    Args:
        costs: The cost of each sample of a batch, ascending, above 0, (samples,).
        shares: As for `cut_by_cost`.
        bounds: Likewise.
    """
    wanted = [(share, one) for share, one in zip(shares, bounds, strict=True) if share]
    least_before = np.cumsum([0, *(one.minimum for _, one in wanted)]).tolist()

    def counts_at(level: float) -> list[int] | None:
        """Return the samples of slices within a level, (wanted,); None where they are fewer than the batch.

        They are counted from the last: it has the dearest samples, and the more it takes, the less others'
        cost.
        """
        counts = [0] * len(wanted)
        end = len(costs)
        for place in range(len(wanted) - 1, -1, -1):
            share, one = wanted[place]
            if not end:
                break
            fits = int(min(level * share / costs[end - 1], one.maximum, end))
            counts[place] = max(min(fits, end - least_before[place]), one.minimum)
            if counts[place] > fits:
                return None
            end -= counts[place]
        return None if end else counts

    low, high = 0.0, 2.0 * float(costs[-1]) * len(costs) / min(share for share, _ in wanted)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if counts_at(middle) is None else (low, middle)
    counts = counts_at(high)
    if counts is None:  # no slices within their bounds are the batch
        return cut_by_cost(costs, shares, bounds)
    found = iter(counts)
    return [next(found) if share else 0 for share in shares]


def cut_by_cost(costs: NDArray[np.float64], shares: Sequence[int], bounds: Sequence[Bounds]) -> list[int]:
    """Return the samples of consecutive slices, which sum to those of the batch.

    A slice ends at the border between samples that is nearest to where its share of the cost does: so it is
    off by half the cost of one sample at each end, at most, unless its bounds are in the way, and errors do
    not add up.

    Args:
        costs: The cost of each sample of a batch, in the order of its positions, above 0, (samples,).
        shares: Each slice's share of the cost, in any unit; not all are 0. A slice without a share is empty.
        bounds: Those of each slice, in samples, which are kept as far as they allow a batch of that size.
    """
    ends = np.cumsum(costs)
    shared, whole = np.cumsum(shares), sum(shares)
    least = [one.minimum if share else 0 for one, share in zip(bounds, shares, strict=True)]
    most = [one.maximum if share else 0 for one, share in zip(bounds, shares, strict=True)]
    counts: list[int] = []
    for place, share in enumerate(shares):
        start = sum(counts)
        left = len(costs) - start
        target = float(ends[-1]) * float(shared[place]) / whole
        end = int(np.searchsorted(ends, target)) + 1
        before = float(ends[end - 2]) if end > 1 else 0.0
        if end > len(costs) or target - before < float(ends[end - 1]) - target:
            end -= 1
        unit = bounds[place].granularity
        count = round((end - start) / unit) * unit
        count = min(max(count, least[place]), most[place])
        # What the others have to be left, and what they can take.
        count = max(min(count, left - sum(least[place + 1 :])), left - sum(most[place + 1 :]))
        counts.append(min(max(count, 0), left) if share else 0)
    return counts
