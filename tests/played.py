"""Iterations of a job whose workers are played, so that the truth is known."""

from collections.abc import Callable, Sequence

import numpy as np

from batchsize_manager.policies import Observation, Participant, Policy
from evenpace.overview.iterations import Iteration
from idl.bounds import Bounds

OVERHEAD = 0.004  # seconds that an iteration takes beyond its slowest worker


def iteration(
    number: int,
    sizes: Sequence[int],
    times: Sequence[float],
    names: Sequence[str] | None = None,
    cpu: Sequence[float] | None = None,
    predicted: Sequence[float] | None = None,
    attempt: int = 0,
) -> Iteration:
    """One iteration; all wait for the slowest."""
    batch_sizes, seconds = np.array(sizes, dtype=np.int64), np.array(times, dtype=np.float64)
    slowest = float(seconds.max())
    return Iteration(
        iteration=number,
        epoch=number // 100,
        total=int(batch_sizes.sum()),
        attempt=attempt,
        duration=slowest + OVERHEAD,
        workers=tuple(names or (f"worker-{i}" for i in range(len(sizes)))),
        batch_sizes=batch_sizes,
        batch_processing_times=seconds,
        waiting_times=slowest - seconds,
        cpu_usages=np.zeros(len(sizes)) if cpu is None else np.array(cpu, dtype=np.float64),
        memory_usages=np.full(len(sizes), 0.5),
        predicted_speeds=np.full(len(sizes), np.nan) if predicted is None else np.array(predicted),
    )


def play(
    policy: Policy, workers: int, total: int, iterations: int, time_of: Callable[[int, int, int], float]
) -> list[Iteration]:
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
            {name: Observation(count, time) for name, count, time in zip(names, counts, times, strict=True)}
        )
    return played


def seconds(iterations: Sequence[Iteration]) -> float:
    """That they took."""
    return sum(one.duration for one in iterations)
