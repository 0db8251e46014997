"""Iterations of a job whose workers are played, so that the truth is known."""

import math
from collections.abc import Callable, Sequence

from batchsize_manager.policies import Participant, Policy
from idl.bounds import Bounds
from idl.records import IterationRecord, WorkerRecord

OVERHEAD = 0.004  # seconds that an iteration takes beyond its slowest worker


def iteration(
    number: int,
    sizes: Sequence[int],
    times: Sequence[float],
    names: Sequence[str] | None = None,
    cpu: Sequence[float] | None = None,
    predicted: Sequence[float] | None = None,
    attempt: int = 0,
    at_once: Sequence[int] | None = None,
    communication: Sequence[float] | None = None,
) -> IterationRecord:
    """Play one iteration, in which all wait for the slowest."""
    slowest = float(max(times))
    names = names or [f"worker-{i}" for i in range(len(sizes))]
    nothing = [math.nan] * len(sizes)
    parts = {
        name: WorkerRecord(int(size), float(time), slowest - time, usage, 0.5, speed, together, transfers)
        for name, size, time, usage, speed, together, transfers in zip(
            names,
            sizes,
            times,
            cpu or [0.0] * len(sizes),
            predicted or nothing,
            at_once or [1] * len(sizes),
            communication or nothing,
            strict=True,
        )
    }
    duration = slowest + OVERHEAD
    return IterationRecord.of(number, number // 100, sum(map(int, sizes)), duration, parts, attempt)


def recorded(number: int, workers: Sequence[WorkerRecord]) -> IterationRecord:
    """Return an iteration in which workers have these records."""
    parts = {f"worker-{i}": part for i, part in enumerate(workers)}
    total = sum(part.batch_size for part in workers)
    duration = max(part.batch_processing_time + part.waiting_time for part in workers)
    return IterationRecord.of(number, 0, total, duration, parts)


def play(
    policy: Policy, workers: int, total: int, iterations: int, time_of: Callable[[int, int, int], float]
) -> list[IterationRecord]:
    """A job as a real policy splits it.

    Args:
        policy: Of this job alone.
        workers: How many.
        total: Samples of each batch.
        iterations: How many.
        time_of: Seconds that a worker takes, by its number, the iteration's, and its samples.
    """
    names = [f"worker-{i}" for i in range(workers)]
    policy.set_members([Participant(name, Bounds(1, 10**6, 1)) for name in names])
    played = []
    for number in range(iterations):
        counts = list(policy.split(total).counts)
        times = [time_of(i, number, count) for i, count in enumerate(counts)]
        played.append(iteration(number, counts, times, names))
        policy.observe(
            {name: WorkerRecord(count, time) for name, count, time in zip(names, counts, times, strict=True)}
        )
    return played


def seconds(iterations: Sequence[IterationRecord]) -> float:
    """Return the seconds that the iterations took."""
    return sum(one.duration for one in iterations)
