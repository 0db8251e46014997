"""The best split over devices of known profiles, before anything runs (VirtualFlow, section 5.1.2).

The solver is the manager's own; only the time curves come from profiles. Where fewer devices are faster, the
fastest kind of device alone, the plan says so. Pure functions of values.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from batchsize_manager.learning.profiles import Profile
from batchsize_manager.planning_config import Task
from batchsize_manager.policies.solver import InfeasibleError, TimeCurves, split, split_evenly_in_time
from batchsize_manager.policies.step_times import StepTimeCurves
from batchsize_manager.policies.waves import WaveCurves, Waves
from idl.bounds import Bounds
from idl.cuts import Cuts


@dataclass(frozen=True, slots=True)
class Share:
    """A device's share of a batch."""

    device: str  # its kind
    samples: int
    seconds: float  # time that it takes for them
    micro_batches: int | None = None  # micro-batches; None for a job without
    at_once: int | None = None  # micro-batches at once; None where the profile does not say
    waves: int | None = None  # waves of as many; None likewise


@dataclass(frozen=True, slots=True)
class Forecast:
    """A split with its times.

    Attributes:
        left_out: Number of devices without a share, since the batch has fewer micro-batches, or samples, than
            there are devices: the manager gives each worker one at least.
    """

    shares: tuple[Share, ...]  # each device's share, in the order of the devices
    seconds: float  # seconds of an iteration, with communication
    left_out: int = 0

    @property
    def throughput(self) -> float:
        """Samples per second."""
        return sum(share.samples for share in self.shares) / self.seconds


@dataclass(frozen=True, slots=True)
class Recommendation:
    """Forecasts of the ways to use some devices; None where a batch does not fit."""

    balanced: Forecast | None  # the best split over all devices
    even: Forecast | None  # an even split over all devices
    # The best split over the devices of one kind, by kind; empty if there is only one.
    alone: dict[str, Forecast | None]

    @property
    def fastest_alone(self) -> str | None:
        """The kind of device that is fastest without the others; None where none can take the batch."""
        fitting = {kind: its.seconds for kind, its in self.alone.items() if its is not None}
        return min(fitting, key=lambda kind: fitting[kind]) if fitting else None

    @property
    def best(self) -> Forecast | None:
        """The fastest of all: the balanced split or, where that is faster, one kind of device alone."""
        alone = self.alone[self.fastest_alone] if self.fastest_alone is not None else None
        if self.balanced is None or (alone is not None and alone.seconds <= self.balanced.seconds):
            return alone
        return self.balanced


def recommend(devices: Sequence[tuple[Profile, int]], task: Task) -> Recommendation:
    """Return forecasts for a task on devices, each kind by its profile and its number.

    Raises:
        ValueError: A profile is not of jobs in such micro-batches, or its device cannot take a micro-batch;
            or some profiles are of jobs in micro-batches, and others are not.
    """
    if len({profile.micro_batch for profile, _ in devices}) > 1:
        of = ", ".join(f"{profile.device!r} {profile.micro_batch}" for profile, _ in devices)
        raise ValueError(f"micro-batches of the profiles: {of}: must be the same for all")
    workers = [profile for profile, count in devices for _ in range(count)]
    for profile, _ in devices:
        _check(profile, task)
    kinds = [profile.device for profile, _ in devices]
    alone = {
        kind: forecast([worker for worker in workers if worker.device == kind], task)
        for kind in (kinds if len(kinds) > 1 else [])
    }
    return Recommendation(forecast(workers, task), forecast(workers, task, balanced=False), alone)


def forecast(workers: Sequence[Profile], task: Task, *, balanced: bool = True) -> Forecast | None:
    """Return the forecast of the best split over workers, or of an even one; None where it does not fit."""
    cuts = Cuts(task.total, task.unit)
    curves = _curves(workers, task)
    bounds = [_bounds(profile, task) for profile in workers]
    try:
        if balanced:
            numbers = split_evenly_in_time(curves, len(cuts), bounds)
        else:
            numbers = split([1.0] * len(workers), len(cuts), bounds)
    except InfeasibleError:
        return None
    seconds = [curves.time(i, number) if number else 0.0 for i, number in enumerate(numbers)]
    used = sum(map(bool, numbers))
    shares = tuple(
        _share(
            profile.device,
            samples,
            time,
            None if task.micro_batch is None else number,
            curves.waves[i] if isinstance(curves, WaveCurves) else None,
        )
        for i, (profile, number, samples, time) in enumerate(
            zip(workers, numbers, cuts.counts(numbers), seconds, strict=True)
        )
        if number
    )
    return Forecast(shares, max(seconds) + task.communication * (used - 1), len(workers) - used)


def _share(device: str, samples: int, seconds: float, number: int | None, waves: Waves | None) -> Share:
    if waves is None or not number:
        return Share(device, samples, seconds, number)
    at_once = waves.best_at_once(number)
    return Share(device, samples, seconds, number, at_once, -(-number // at_once))


def _curves(workers: Sequence[Profile], task: Task) -> TimeCurves:
    size = task.micro_batch
    if size is None or workers[0].micro_batch is not None:
        return StepTimeCurves([profile.times.in_units(task.unit) for profile in workers])
    waves = {}
    for profile in workers:
        if profile.device not in waves:
            at_once = min(task.at_once, (profile.limit or task.total) // size)
            times = profile.times
            waves[profile.device] = Waves(tuple(times.time(n * size) for n in range(1, at_once + 1)))
    return WaveCurves([waves[profile.device] for profile in workers])


def _bounds(profile: Profile, task: Task) -> Bounds:
    """Return a worker's bounds: it can take any number of micro-batches, one wave after the other."""
    if task.micro_batch is not None or profile.limit is None:
        return Bounds()
    return Bounds(maximum=profile.limit)


def _check(profile: Profile, task: Task) -> None:
    size = task.micro_batch
    if profile.micro_batch is not None and profile.micro_batch != size:
        raise ValueError(
            f"micro_batch {size}: the profile of {profile.device!r} is of a job in micro-batches of "
            f"{profile.micro_batch}"
        )
    if size is not None and profile.limit is not None and profile.limit < size:
        raise ValueError(
            f"micro_batch {size}: {profile.device!r} can take at most {profile.limit} samples at once"
        )
