"""Batch sizes by time curves that are fitted while the job runs, so that all workers take equally long.

This has the aim of LB-BSP's sections 3.3.1 and 3.3.2 without the steps of Alg. 2: once the curves are known,
the best split follows from them at once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from batchsize_manager.policies.at_once import Gains
from batchsize_manager.policies.base import MEMORY_GUARD, LastSplits, Participant, Policy, Split
from batchsize_manager.policies.curves import Curves
from batchsize_manager.policies.curves_in_waves import Alone, CurvesInWaves
from batchsize_manager.policies.dispensable import dispensable_workers
from batchsize_manager.policies.fitted_curves import FittedCurves
from batchsize_manager.policies.measurements import SIZES_KEPT
from batchsize_manager.policies.overlapped_curves import OverlappedCurves
from batchsize_manager.policies.solver import TimeCurves, split, split_evenly_in_time
from idl.bounds import Bounds
from idl.records import WorkerRecord
from predictors import Array, ModelKey, Models, Weights

_SURE = 1.0  # standard deviations of the straggler's time by which a new split must be better


class Learned(Policy):
    """A policy that fits each worker's time curve online and solves for the shortest longest time.

    No iterations are spent on exploration: the first splits differ from each other anyway, and each
    measures the curves near where the next split is sought. A worker without measurements is taken to be as
    the others are on average. A split stays until another is better by more than `tolerance` and by more
    than the error of the curves.

    Args:
        tolerance: Keep a split while its slowest worker is expected to take at most 1 + `tolerance` times
            as long as with the best one; see `Proportional`.
        models: Earlier measurements of workers that join, under "learned" by worker; see `ModelRegistry`.
        gains: What several micro-batches at once gain. Curves are those of one after another: an iteration
            with several counts as one of fewer, that would have taken as long.

    Raises:
        ValueError: A model has not the form of this policy's.
    """

    def __init__(
        self, tolerance: float = 0.0, models: Models | None = None, gains: Gains | None = None
    ) -> None:
        self._tolerance = tolerance
        self._known = {} if models is None else models.get("learned", {})
        for name, weights in self._known.items():
            _checked(name, weights)
        self._members: Sequence[Participant] = ()
        self._gains = Gains() if gains is None else gains
        self._expected = 1  # units of a whole batch
        self._processing = FittedCurves()  # of the batch processing times
        self._last = LastSplits()
        self._largest = np.zeros(0)  # (workers,), units: the largest batch that each has gone through
        self._guarded = np.zeros(0, dtype=bool)  # (workers,), whether memory was short in the last report

    def set_members(self, members: Sequence[Participant]) -> None:
        """Set the members; those that stay keep their curves, whatever their bounds are now."""
        row_of = {member.name: row for row, member in enumerate(self._members)}
        rows = [row_of.get(member.name) for member in members]
        self._processing.reindex(rows)
        self._largest = np.array([0.0 if row is None else self._largest[row] for row in rows])
        self._guarded = np.array([row is not None and self._guarded[row] for row in rows], dtype=bool)
        for row, (member, old) in enumerate(zip(members, rows, strict=True)):
            if old is None and (weights := self._known.get(member.name)) is not None:
                sizes, times = _checked(member.name, weights)
                sizes = sizes / self.unit
                # A profile may have more sizes than are kept: those near what the worker will get tell most.
                away = np.abs(np.log(sizes * (len(members) / self._expected)))
                nearest = np.sort(away.argsort()[:SIZES_KEPT])
                self._processing.restore(row, sizes[nearest], times[nearest])
        self._members = members
        self._last.clear()

    def expect(self, total: int, unit: int = 1) -> None:
        """Note the size of whole batches; see `Policy.expect`."""
        super().expect(total, unit)
        self._expected = total
        self._processing.least = 1 / unit  # a sample

    def observe(self, observations: Mapping[str, WorkerRecord]) -> None:
        """Add the time of each batch size, an epoch's last batch included; see `Policy.observe`."""
        seen = [
            (row, observation, alone)
            for row, member in enumerate(self._members)
            if (observation := observations.get(member.name)) is not None
            and observation.batch_size
            and (alone := self._gains.alone(member.name, observation)) is not None
        ]
        if not seen:
            return
        workers = np.array([row for row, _, _ in seen], dtype=np.int64)
        sizes = np.array([float(alone) for _, _, alone in seen])
        times = np.array([observation.batch_processing_time for _, observation, _ in seen])
        largest = [float(observation.batch_size) for _, observation, _ in seen]
        self._largest[workers] = np.maximum(self._largest[workers], largest)
        self._guarded[workers] = [observation.memory_usage > MEMORY_GUARD for _, observation, _ in seen]
        self._processing.add(workers, sizes, times)

    def split(self, total: int) -> Split:
        """Split the next batch by the time curves; see `Policy.split`."""
        bounds = self._bounds(total)
        seen = self._processing.measurements.seen
        if not seen.any():
            return Split(split([1.0] * len(bounds), total, bounds))
        last = self._last.get(total)
        alone = self._alone()
        centres = self._usual_sizes(total) if last is None else alone.all(last)
        curves = self._near(centres)
        best = split_evenly_in_time(self._times(curves, alone), total, bounds)
        if last is None:  # the curves are to be right near the split that they lead to
            centres = alone.all(best)
            curves = self._near(centres)
            best = split_evenly_in_time(self._times(curves, alone), total, bounds)
        if last is None or not _fits(last, bounds) or self._pays(curves, alone.all(last), alone.all(best)):
            last = best
        self._last[total] = last
        counts = np.array(last, dtype=float)
        times = curves.processing_times(alone.all(last))
        speeds = np.where(seen & (counts > 0), counts * self.unit / times, np.nan)
        needless: Mapping[str, str] = {}
        if not self._gains.matters:
            needless = dispensable_workers(
                [member.name for member in self._members],
                curves,
                self._processing.measurements,
                last,
                total,
                bounds,
                self.unit,
            )
        return Split(list(last), predicted_speeds=speeds.tolist(), dispensable=needless)

    def seconds(self, totals: Sequence[int]) -> list[float] | None:
        """Return the seconds of batches of other sizes by the time curves; see `Policy.seconds`."""
        measurements = self._processing.measurements
        if not measurements.seen.any():
            return None
        alone, latest = self._alone(), measurements.latest_sizes
        curves = self._near(latest)
        times = self._times(curves, alone)
        # What the present iteration takes beside the processing: 0, unless the curves are of more than that.
        beside = curves.times(latest).max() - curves.processing_times(latest).max()
        splits = (split_evenly_in_time(times, total, self._bounds(total)) for total in totals)
        return [float(curves.times(alone.all(counts)).max() - beside) for counts in splits]

    def models(self) -> Models:
        """Return each member's measurements, from which its curve follows; see `Policy.models`."""
        measurements = self._processing.measurements
        learned: dict[ModelKey, Weights] = {
            member.name: {
                "sizes": measurements.sizes[row, places] * self.unit,
                "times": measurements.times[row, places],
            }
            for row, (member, places) in enumerate(zip(self._members, measurements.repeats > 0, strict=True))
            if places.any()
        }
        return {"learned": learned} if learned else {}

    def _alone(self) -> Alone:
        return Alone([self._gains.waves(member.name) for member in self._members])

    def _near(self, centres: Array) -> Curves | OverlappedCurves:
        """Return the curves of which the longest time is to be short, fitted near `centres`, (workers,)."""
        return self._processing.near(centres)

    def _times(self, curves: Curves | OverlappedCurves, alone: Alone) -> TimeCurves:
        """Return the curves for the solver; in waves, where a worker may compute several at once."""
        if not self._gains.matters:
            return curves.equal_time()
        return CurvesInWaves(curves, alone) if isinstance(curves, Curves) else curves.in_waves(alone)

    def _usual_sizes(self, total: int) -> Array:
        """Return about what each worker would have of a batch of a new size, (workers,)."""
        sizes = self._processing.measurements.latest_sizes
        usual: Array = sizes * (total / sizes.sum())
        return usual

    def _bounds(self, total: int) -> list[Bounds]:
        """Return the members' bounds; workers short of memory get at most their largest batch so far."""
        bounds = [member.bounds for member in self._members]
        narrowed = [
            _at_most(bound, int(largest)) if guarded else bound
            for bound, largest, guarded in zip(bounds, self._largest, self._guarded, strict=True)
        ]
        return narrowed if sum(bound.maximum for bound in narrowed) >= total else bounds

    def _pays(self, curves: Curves | OverlappedCurves, last: Array, best: Array) -> bool:
        """Return whether the best split is better than the last by more than the curves may be wrong."""
        times = curves.times(last)
        straggler = int(times.argmax())
        longest = float(curves.times(best).max())
        return bool(
            times[straggler] > longest * (1 + self._tolerance + _SURE * float(curves.error[straggler]))
        )


def _fits(counts: Sequence[int], bounds: Sequence[Bounds]) -> bool:
    return all(count <= bound.maximum for count, bound in zip(counts, bounds, strict=True))


def _at_most(bound: Bounds, largest: int) -> Bounds:
    """Return a worker's bounds with a lower maximum, as far as its minimum allows."""
    least = -(-bound.minimum // bound.granularity) * bound.granularity
    return replace(bound, maximum=min(bound.maximum, max(least, largest)))


def _checked(key: ModelKey, weights: Weights) -> tuple[Array, Array]:
    """Return the sizes and times of a saved model, or raise ValueError."""
    sizes, times = (np.asarray(weights.get(name, ())) for name in ("sizes", "times"))
    if sizes.ndim != 1 or sizes.shape != times.shape or not sizes.size or min(sizes.min(), times.min()) <= 0:
        raise ValueError(
            f"model of worker {str(key)!r}: 'sizes' and 'times' must be as many numbers above 0, "
            f"but have shapes {sizes.shape} and {times.shape}"
        )
    return sizes, times
