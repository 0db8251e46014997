"""Batch sizes by time curves where transfers of gradients overlap with the backward pass.

OptPerf of Cannikin (sections 3.2 to 4.2): a worker whose bottleneck is communication holds up an iteration by
the moment when its first gradients are ready, another by the moment when its last ones are.
"""

from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

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
_LATEST = 10  # iterations, whose measured transfers count


class Overlap(Learned):
    """A policy that fits t_compute and syncStart of each worker, and solves for the shortest iteration.

    Per worker it fits, as `Learned` does, t_compute = (q + k) b + s + m, the batch processing time without
    transfers, and syncStart = (q + γ k) b + s + γ m: the four coefficients of equation 3 of Cannikin, in the
    two sums of them that count. Shared by all is γ, of which each worker measures its own, undisturbed by the
    others: the mean is weighted by inverse variances (section 5.3).

    With an all-reduce T_o and T_u (equation 7) are shared, too. Each worker measures them from when it is
    ready itself, so that all workers but the last to be ready count their waiting for that one as well. No
    weights mend this, as waiting may hardly vary: the least of each counts that the workers have measured in
    the latest ten iterations, so that a slower network is known after as many. In one iteration even the
    least T_o may be too large, where different workers are the last in different buckets.

    With a parameter server nobody waits for others in them: each worker has its own, by its link, the medians
    of the latest ten iterations. There the batch processing time contains the transfers that computing does
    not hide, the communication time; t_compute is what it has besides.

    In a job with micro-batches P is that of a worker's last one, however many it has; so P is no part of the
    curves. What is fitted is t_compute, and syncStart is t_compute less (1 - γ) P, of which each worker has
    the median of the latest ten iterations.

    As long as not all workers with samples in an iteration have measured their transfers, in none of the
    latest ten, it splits as `Learned` does.

    Args:
        tolerance: As of `Learned`.
        models: As of `Learned`, whose models it shares.
        gains: As of `Learned`.
    """

    def __init__(
        self, tolerance: float = 0.0, models: Models | None = None, gains: Gains | None = None
    ) -> None:
        super().__init__(tolerance, models, gains)
        self._computing = FittedCurves()  # t_compute
        self._starts = FittedCurves()  # syncStart
        self._first_share = SharedValue()  # γ
        # T_o, T_u and P in the latest iterations, in seconds, NaN where not measured; (3, workers) each
        self._transfers: deque[Array] = deque(maxlen=_LATEST)
        self._by_server = False  # whether they are with a parameter server

    def set_members(self, members: Sequence[Participant]) -> None:
        """Set the members; see `Learned.set_members`."""
        row_of = {member.name: row for row, member in enumerate(self._members)}
        rows = [row_of.get(member.name) for member in members]
        for values in (self._computing, self._starts, self._first_share):
            values.reindex(rows)
        moved = [
            [np.full(3, np.nan) if row is None else its[:, row] for row in rows] for its in self._transfers
        ]
        self._transfers = deque((np.array(its).reshape(-1, 3).T for its in moved), _LATEST)
        super().set_members(members)

    def expect(self, total: int, unit: int = 1) -> None:
        """Note the size of whole batches; see `Policy.expect`."""
        super().expect(total, unit)
        self._computing.least = self._starts.least = 1 / unit

    def observe(self, observations: Mapping[str, WorkerRecord]) -> None:
        """Add the times of each worker, and those of the reductions; see `Policy.observe`."""
        super().observe(observations)
        seen = [
            (row, record, alone)
            for row, member in enumerate(self._members)
            if (record := observations.get(member.name)) is not None
            and _is_measured(record)
            and (alone := self._gains.alone(member.name, record)) is not None
        ]
        self._note_transfers(observations)
        if not seen:
            return
        workers = np.array([row for row, _, _ in seen], dtype=np.int64)
        # (4, reports)
        sizes, times, backward, first = np.array(
            [(alone, _computing_time(o), o.backward_time, o.first_bucket_time) for _, o, alone in seen]
        ).T
        backward = np.minimum(backward, times)
        self._first_share.add(workers, np.minimum(first / backward, 1.0))
        share = self._first_share.value
        assert share is not None
        sized = sizes > 0  # a worker without a part in the batch computes a sample that does not count
        starts = np.maximum(times - (1 - share) * backward, _EARLIEST * times)
        self._computing.add(workers[sized], sizes[sized], times[sized])
        self._starts.add(workers[sized], sizes[sized], starts[sized])

    def _note_transfers(self, observations: Mapping[str, WorkerRecord]) -> None:
        """Note T_o, T_u and P of an iteration, where all that take part in it have measured them."""
        parts = [observations.get(member.name) for member in self._members]
        seen = [part for part in parts if part is not None and not _is_idle(part)]
        by_server = {_is_by_server(part) for part in seen}
        measured = np.full((3, len(parts)), np.nan)
        if None not in parts and all(map(_is_measured, seen)) and len(by_server) == 1:
            (self._by_server,) = by_server
            for row, part in enumerate(parts):
                if part is not None:
                    measured[:, row] = part.other_buckets_time, part.last_bucket_time, part.backward_time
        self._transfers.append(measured)

    def _usual_transfers(self) -> Array | None:
        """Return T_o, T_u and P of each worker in seconds, (3, workers); None where they are not known."""
        latest = np.array(self._transfers).reshape(-1, 3, len(self._members))
        known = ~np.isnan(latest).all(axis=(0, 1))
        if not known.any():
            return None
        usual = np.empty(latest.shape[1:])
        usual[:, known] = np.nanmedian(latest[:, :, known], axis=0)
        usual[:, ~known] = usual[:, known].mean(axis=1, keepdims=True)
        if not self._by_server:
            usual[:2] = np.nanmin(latest[:, :2], axis=(0, 2))[:, None]
        return usual

    def _near(self, centres: Array) -> Curves | OverlappedCurves:
        processing = self._processing.near(centres)
        transfers, known = self._usual_transfers(), self._computing.measurements.known
        share = self._first_share.value
        if transfers is None or share is None or not known.any():
            return processing
        computing = processing
        if self._by_server:
            computing = _filled(self._computing.near(centres), processing, known, centres)
        others, last, backward = transfers
        if self.unit > 1:
            early = (1 - share) * backward
            return OverlappedCurves(computing, computing, last, others + last - early, self._by_server)
        starts = _filled(self._starts.near(centres), computing, known, centres)
        return OverlappedCurves(computing, starts, last, others + last, self._by_server)


def _filled(curves: Curves, whole: Curves, known: NDArray[np.bool_], centres: Array) -> Curves:
    """Return curves in which workers without measurements take as large a part of `whole` as the others."""
    part = (curves.times(centres) / whole.times(centres))[known].mean()
    return curves.where(known, whole.scaled(float(part)))


def _is_by_server(record: WorkerRecord) -> bool:
    """Return whether a batch processing time is known to contain transfers, as with a parameter server."""
    return bool(np.isfinite(record.communication_time))


def _is_idle(record: WorkerRecord) -> bool:
    """Return whether a worker had nothing to push; with an all-reduce, all take part."""
    return record.batch_size == 0 and _is_by_server(record)


def _computing_time(record: WorkerRecord) -> float:
    """Return t_compute, the seconds of a batch processing time without transfers."""
    communication = record.communication_time if _is_by_server(record) else 0.0
    return record.batch_processing_time - communication


def _is_measured(record: WorkerRecord) -> bool:
    times = (
        _computing_time(record),
        record.backward_time,
        record.first_bucket_time,
        record.other_buckets_time,
        record.last_bucket_time,
    )
    return bool(np.isfinite(times).all()) and min(times[:2]) > 0
