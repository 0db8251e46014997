"""Batch sizes by time curves where the sum of gradients over the workers overlaps with the backward pass.

OptPerf of Cannikin (sections 3.2 to 4.2): a worker whose bottleneck is communication holds up an iteration by
the moment when its first gradients are ready, another by the moment when its last ones are.
"""

from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np

from batchsize_manager.policies.at_once import Gains
from batchsize_manager.policies.base import Participant
from batchsize_manager.policies.curves import Curves
from batchsize_manager.policies.fitted_curves import FittedCurves
from batchsize_manager.policies.learned import Learned
from batchsize_manager.policies.overlapped_curves import OverlappedCurves
from batchsize_manager.policies.shared_value import SharedValue
from idl.records import WorkerRecord
from predictors import Array, Models

_EARLIEST = 0.01  # share of its batch processing time after which a worker's first bucket is ready, at least
_LATEST = 10  # iterations, of whose measured reductions the least count


class Overlap(Learned):
    """A policy that fits t_compute and syncStart of each worker, and solves for the shortest iteration.

    Per worker it fits, as `Learned` does, t_compute = (q + k) b + s + m, the batch processing time, and
    syncStart = (q + γ k) b + s + γ m: the four coefficients of equation 3 of Cannikin, in the two sums of
    them that count. Shared by all are γ, T_o and T_u (equation 7).

    Each worker measures γ, undisturbed by the others: the mean is weighted by inverse variances (section
    5.3). T_o and T_u it measures from when it is ready itself, so that all workers but the last to be ready
    count their waiting for that one as well. No weights mend this, as waiting may hardly vary: the least of
    each counts that the workers have measured in the latest ten iterations, so that a slower network is known
    after as many. In one iteration even the least T_o may be too large, where different workers are the last
    in different buckets.

    Until all workers of an iteration have measured their reductions, it splits as `Learned` does.

    Args:
        tolerance: As of `Learned`.
        models: As of `Learned`, whose models it shares.
        gains: As of `Learned`. Reductions are not measured in jobs with micro-batches.
    """

    def __init__(
        self, tolerance: float = 0.0, models: Models | None = None, gains: Gains | None = None
    ) -> None:
        super().__init__(tolerance, models, gains)
        self._starts = FittedCurves()  # syncStart
        self._first_share = SharedValue()  # γ
        self._others: deque[float] = deque(maxlen=_LATEST)  # T_o by the latest iterations, in seconds
        self._last_bucket: deque[float] = deque(maxlen=_LATEST)  # T_u

    def set_members(self, members: Sequence[Participant]) -> None:
        """Set the members; see `Learned.set_members`."""
        row_of = {member.name: row for row, member in enumerate(self._members)}
        rows = [row_of.get(member.name) for member in members]
        self._starts.reindex(rows)
        self._first_share.reindex(rows)
        super().set_members(members)

    def expect(self, total: int, unit: int = 1) -> None:
        """Note the size of whole batches; see `Policy.expect`."""
        super().expect(total, unit)
        self._starts.least = 1 / unit

    def observe(self, observations: Mapping[str, WorkerRecord]) -> None:
        """Add the times of each worker, and those of the reductions; see `Policy.observe`."""
        super().observe(observations)
        seen = [
            (row, record)
            for row, member in enumerate(self._members)
            if (record := observations.get(member.name)) is not None and _is_measured(record)
        ]
        if not seen:
            return
        if len(seen) == len(self._members):  # else the last to be ready may be missing
            self._others.append(min(record.other_buckets_time for _, record in seen))
            self._last_bucket.append(min(record.last_bucket_time for _, record in seen))
        workers = np.array([row for row, _ in seen], dtype=np.int64)
        # (4, reports)
        sizes, times, backward, first = np.array(
            [(o.batch_size, o.batch_processing_time, o.backward_time, o.first_bucket_time) for _, o in seen]
        ).T
        backward = np.minimum(backward, times)
        self._first_share.add(workers, np.minimum(first / backward, 1.0))
        share = self._first_share.value
        assert share is not None
        sized = sizes > 0  # a worker without a part in the batch computes a sample that does not count
        starts = np.maximum(times - (1 - share) * backward, _EARLIEST * times)
        self._starts.add(workers[sized], sizes[sized], starts[sized])

    def _near(self, centres: Array) -> Curves | OverlappedCurves:
        processing = self._processing.near(centres)
        known = self._starts.measurements.known
        if not self._others or not known.any():
            return processing
        starts = self._starts.near(centres)
        # A worker that has not measured it is taken to start as late, relative to its time, as the others.
        late = (starts.times(centres) / processing.times(centres))[known].mean()
        starts = starts.where(known, processing.scaled(float(late)))
        others, last = (min(its) for its in (self._others, self._last_bucket))
        return OverlappedCurves(processing, starts, last, others + last)


def _is_measured(record: WorkerRecord) -> bool:
    times = (
        record.batch_processing_time,
        record.backward_time,
        record.first_bucket_time,
        record.other_buckets_time,
        record.last_bucket_time,
    )
    return bool(np.isfinite(times).all()) and min(times[:2]) > 0
