"""Slices of equal cost: what samples cost that come next, and where in a batch a share of its cost ends.

Costs decide pace alone: a batch whose costs are not known is cut by samples.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from idl.bounds import Bounds
from idl.costs import Costs

_KEPT = 2**20  # samples of an epoch whose costs are kept, so that a job that goes back knows them
_EPOCHS = 6  # that are kept: small data sets' costs are told for several


class KnownCosts:
    """The costs of the samples of the next batches, as workers have told them.

    Args:
        mean: The mean cost of all samples; None in a job without costs.
    """

    def __init__(self, mean: float | None) -> None:
        self._mean = mean
        self._runs: dict[
            int, tuple[int, NDArray[np.uint32]]
        ] = {}  # by epoch: position of the first, and costs

    def take(self, told: Iterable[Costs]) -> None:
        """Take costs, each of which follows the last ones of its epoch, or is put in their place."""
        for one in told if self._mean is not None else ():
            start, costs = self._runs.get(one.epoch, (one.start, np.empty(0, np.uint32)))
            first = min(max(one.start - start, 0), len(costs))
            if not start <= one.start <= start + len(costs):
                start, first = one.start, 0
            costs = np.concatenate([costs[:first], one.array])[-_KEPT:]
            self._runs[one.epoch] = one.start + len(one.array) - len(costs), costs
            for old in sorted(self._runs)[:-_EPOCHS]:
                del self._runs[old]

    def of(self, epoch: int, start: int, total: int) -> NDArray[np.float64] | None:
        """Return the costs of a batch's samples over the mean of all samples, (total,); None if not known."""
        first, costs = self._runs.get(epoch, (0, np.empty(0, np.uint32)))
        if self._mean is None or not first <= start <= start + total <= first + len(costs):
            return None
        return costs[start - first : start - first + total] / self._mean


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
