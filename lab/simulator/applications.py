"""A model as it was measured: step times by placement, and progress and gradient noise by epoch.

This module must not know where the measurements are kept.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import LinearNDInterpolator
from scipy.spatial import QhullError

from idl.noise import Noise
from lab.simulator.rules import JobLimits
from scheduler.goodput import Limits
from scheduler.throughput import Measurements, Throughput, fit

Array: TypeAlias = NDArray[np.float64]
Shape: TypeAlias = tuple[int, ...]
"""Number of devices on each node of a placement."""

_MOST_NODES = 16
"""Nodes up to which step times were measured; more count as these."""


class StepTime(NamedTuple):
    """Seconds of one iteration without accumulation, and of these the seconds of synchronisation."""

    step: float
    sync: float


@dataclass(frozen=True)
class StepTimes:
    """Step times measured on like devices."""

    # For each shape of a placement, its smallest rotation: the local batches, ascending, (n,),
    # and the seconds of step and synchronisation, (n, 2).
    placements: Mapping[Shape, tuple[Array, Array]]
    # In wider placements: nodes, replicas and local batch, (m, 3), with step and synchronisation, (m, 2).
    scalability: tuple[Array, Array]

    @cached_property
    def local_batches(self) -> tuple[int, int]:
        """The smallest and the largest local batch of the measured placements."""
        sizes = [size for locals_, _ in self.placements.values() for size in (locals_[0], locals_[-1])]
        return int(min(sizes)), int(max(sizes))

    @cached_property
    def single_speed(self) -> float:
        """Samples per second of one device: largest local batch by longest step, NaN if unmeasured."""
        if (1,) not in self.placements:
            return math.nan
        locals_, seconds = self.placements[1,]
        return float(locals_[-1] / seconds[:, 0].max())

    @cached_property
    def _most_local_by_replicas(self) -> dict[int, int]:
        most: dict[int, int] = {}
        for shape, (locals_, _) in self.placements.items():
            most[sum(shape)] = max(most.get(sum(shape), 0), int(locals_[-1]))
        return most

    def most_local(self, shape: Shape) -> int | None:
        """Return the largest local batch of a placement, or of those at least as wide if it was not measured.

        None where neither was measured.
        """
        if (measured := self.placements.get(_normal(shape))) is not None:
            return int(measured[0][-1])
        points, _ = self.scalability
        as_wide = points[(points[:, 0] >= len(shape)) & (points[:, 1] >= sum(shape))]
        return int(as_wide[:, 2].max()) if len(as_wide) else None

    def most_local_of(self, replicas: int) -> int | None:
        """Return the largest local batch of all placements of some replicas, if any was measured."""
        return self._most_local_by_replicas.get(replicas)

    @cached_property
    def _means(self) -> dict[tuple[int, int, int], Array]:
        """The mean times of like placements, (2,), by nodes, replicas and local batch, in this order."""
        alike: dict[tuple[int, int, int], list[Array]] = {}
        for shape, (locals_, seconds) in self.placements.items():
            for local, its in zip(locals_, seconds, strict=True):
                alike.setdefault((len(shape), sum(shape), int(local)), []).append(its)
        return {key: np.mean(alike[key], axis=0) for key in sorted(alike)}

    def measurements(self) -> Measurements:
        """Return all that was measured, means over like placements."""
        wider = {
            (int(nodes), int(replicas), int(local)): (float(step), float(sync))
            for (nodes, replicas, local), (step, sync) in zip(*self.scalability, strict=True)
        }
        means = {key: (float(step), float(sync)) for key, (step, sync) in self._means.items()}
        return wider | means

    @cached_property
    def _between(self) -> LinearNDInterpolator:
        """Linear interpolation over (nodes, replicas, local batch), over the means of like placements."""
        # In this order of the points: they lie on a grid, so that other orders give other simplices.
        points = np.array(list(self._means), dtype=float)
        means = np.array(list(self._means.values()))
        wider_points, wider_seconds = self.scalability
        try:
            return LinearNDInterpolator(
                np.concatenate([points, wider_points]), np.concatenate([means, wider_seconds])
            )
        except QhullError as error:
            raise ValueError(
                f"{len(points) + len(wider_points)} measured step times are too few, or too much alike, to "
                "interpolate between placements"
            ) from error

    def at(self, shape: Shape, local: int) -> StepTime:
        """Return the step time of a placement, interpolated (ValueError: outside of what was measured)."""
        shape = _normal(shape)
        if shape in self.placements:
            locals_, seconds = self.placements[shape]
            if not locals_[0] <= local <= locals_[-1]:
                raise ValueError(
                    f"local batch {local} on {shape} devices: measured are {locals_[0]:g} to {locals_[-1]:g}"
                )
            return StepTime(*(float(np.interp(local, locals_, its)) for its in seconds.T))
        step, sync = self._between([min(len(shape), _MOST_NODES), sum(shape), local])[0]
        if np.isnan(step):
            raise ValueError(f"local batch {local} on {shape} devices is outside of what was measured")
        return StepTime(float(step), float(sync))


def _normal(shape: Shape) -> Shape:
    """Return the lexicographically smallest rotation of a shape."""
    return min(shape[i:] + shape[:i] for i in range(len(shape)))


@dataclass(frozen=True)
class Epochs:
    """A training with one batch size, epoch by epoch."""

    progress: Array  # iterations so far, counted in initial batches that would have done as much, (epochs,)
    iterations: Array  # iterations so far, (epochs,)
    sqr: Array  # squared norm of the gradient, (epochs,)
    var: Array  # trace of its covariance for a batch of the initial size, (epochs,)


class Application:
    """A model to train, with its measurements and limits; without limits, those of the measurements alone.

    Step times are by kind of devices, trainings by samples of the whole batch. A batch, a placement or a
    local batch outside of what was measured is a ValueError.
    """

    def __init__(
        self,
        name: str,
        step_times: Mapping[str, StepTimes],
        trainings: Mapping[int, Epochs],
        limits: JobLimits | None = None,
    ) -> None:
        self.name = name  # the model's
        self.limits = JobLimits() if limits is None else limits  # what is fixed beside the measurements
        self._step_times = step_times
        self._sizes: Sequence[int] = sorted(trainings)
        self._trainings = trainings
        # Samples of the smallest whole batch trained with, in which progress is counted, and of the largest.
        self.initial, self.largest = self._sizes[0], self._sizes[-1]
        # By kind of devices: whole batches from initial to largest, local ones of which steps were measured.
        self.batches: dict[str, Limits] = {}
        for kind, times in step_times.items():
            least_local, most_local = times.local_batches
            most_local = self.limits.most_local.get(kind, most_local)
            self.batches[kind] = Limits(self.initial, self.largest, least_local, most_local)
        measured = min(len(training.progress) for training in trainings.values())
        self.epochs = self.limits.epochs or measured  # number of epochs after which a job ends
        if measured < self.epochs:
            raise ValueError(f"{name}: a job has {self.epochs} epochs; {measured} were measured")
        for size, training in trainings.items():
            if not (training.sqr + training.var > 0).all():
                raise ValueError(f"{name}: an epoch with batches of {size} has neither gradient nor noise")
        self._ends = [
            float(min(training.progress[epoch] for training in trainings.values()))
            for epoch in range(self.epochs)
        ]
        self._known: dict[Any, Any] = {}

    def step_time(self, kind: str, shape: Shape, local: int) -> StepTime:
        """Return the step time on the nodes of a placement of devices of one kind."""
        if (found := self._known.get((kind, shape, local))) is None:
            try:
                found = self._known[kind, shape, local] = self._step_times[kind].at(shape, local)
            except ValueError as error:
                raise ValueError(f"{self.name}: {error}") from error
        return found

    @cached_property
    def single_speeds(self) -> dict[str, float]:
        """Samples per second of one device, by kind; only those of kinds that were measured so."""
        speeds = {kind: times.single_speed for kind, times in self._step_times.items()}
        return {kind: speed for kind, speed in speeds.items() if not math.isnan(speed)}

    def throughput(self, kind: str) -> Throughput:
        """Return the model of step times on a kind of devices, fitted to all that was measured."""
        if (found := self._known.get(("throughput", kind))) is None:
            found = self._known["throughput", kind] = fit(self._step_times[kind].measurements())
        return found

    def batches_at(self, kind: str, shape: Shape) -> Limits:
        """Return the batches that the memory of a placement allows, as far as it counts by placement."""
        limits = self.batches[kind]
        if self.limits.memory_by_placement and (most := self._step_times[kind].most_local(shape)) is not None:
            limits = replace(limits, most_local=max(most, limits.least_local))
        return limits

    def fitting(self, kind: str, replicas: int, local: int, accumulations: int) -> int:
        """Return a local batch, lessened to what was measured with as many replicas on any placement.

        Only where memory counts by placement; the whole batch stays within the largest.
        """
        if not self.limits.memory_by_placement:
            return local
        if (most := self._step_times[kind].most_local_of(replicas)) is not None:
            local = min(local, most)
        return min(local, self.largest // (replicas * (accumulations + 1)))

    def epoch_end(self, epoch: int) -> float:
        """Return the progress at which an epoch, counted from 0, ends: the least of all batch sizes."""
        return self._ends[epoch]

    @property
    def first_noise(self) -> Noise:
        """The gradient noise in the first epoch, with batches of the initial size."""
        return self.noise(self.initial, 0)

    def noise(self, batch: int, epoch: int) -> Noise:
        """Return the gradient noise in an epoch, interpolated between the sizes that were trained with."""
        if (found := self._known.get(("noise", batch, epoch))) is None:
            sqr, var = (self._between(batch, epoch, name) for name in ("sqr", "var"))
            found = self._known["noise", batch, epoch] = Noise(sqr, var * self.initial)
        return found

    def gain(self, batch: int, epoch: int) -> float:
        """Return the progress of one iteration in an epoch, in initial batches (Pollux, 3.1)."""
        if (found := self._known.get(("gain", batch, epoch))) is None:
            initial = self.initial
            found = batch / initial * self.noise(batch, epoch).efficiency(batch, initial)
            self._known["gain", batch, epoch] = found
        return found

    def iterations_left(self, batch: int, epoch: int) -> float:
        """Return the iterations from the end of an epoch to the end of a job; 1 in the last epoch."""
        if epoch >= self.epochs - 1:
            return 1.0
        if (found := self._known.get(("left", batch, epoch))) is None:
            ends = (self._between(batch, one, "iterations") for one in (self.epochs - 1, epoch))
            found = self._known["left", batch, epoch] = next(ends) - next(ends)
        return found

    def packed_iteration(self, kind: str, batch: int, devices: int, node: int) -> float:
        """Return the seconds of an iteration, accumulation and all, on full nodes and one with the rest."""
        if (found := self._known.get(("packed", kind, batch, devices, node))) is None:
            full, rest = divmod(devices, node)
            shape = (node,) * full + ((rest,) if rest else ())
            # As the published policies count, which let one device accumulate in any case.
            local, accumulations = replace(self.batches_at(kind, shape), initial=1).share(batch, devices)
            step, sync = self.step_time(kind, shape, int(local))
            found = self._known["packed", kind, batch, devices, node] = step + int(accumulations) * (
                step - sync
            )
        return found

    def _between(self, batch: int, epoch: int, column: str) -> float:
        if not self.initial <= batch <= self.largest:
            raise ValueError(
                f"{self.name}: a batch of {batch} samples; measured are {self.initial} to {self.largest}"
            )
        lower = max(size for size in self._sizes if size <= batch)
        upper = min(size for size in self._sizes if size >= batch)
        low, high = (float(getattr(self._trainings[size], column)[epoch]) for size in (lower, upper))
        if lower == upper:
            return low
        return ((batch - lower) * high + (upper - batch) * low) / (upper - lower)
