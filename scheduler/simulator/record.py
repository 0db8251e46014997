"""The lives of simulated jobs, and figures over all of them."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from scheduler.allocation import Placement


@dataclass
class Life:
    """What happened to a job; times are in seconds on the cluster's clock.

    Attributes:
        name: The job's.
        application: The model that it trained.
        submitted: Time of its submission.
        started: Time at which it first had devices; None before.
        ended: Time at which its last epoch ended; None before.
        restarts: Changes since it first started, to another placement with devices, that had a pause.
        device_seconds: Device time, the pauses after changes among it.
        placements: Times of changes, each with the placement from then on.
        batches: Times of changes, each with the samples of the whole batch from then on.
        epochs: Time at which each epoch ended.
    """

    name: str
    application: str
    submitted: int
    started: int | None = None
    ended: int | None = None
    restarts: int = 0
    device_seconds: int = 0
    placements: list[tuple[int, Placement]] = field(default_factory=list)
    batches: list[tuple[int, int]] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)

    @property
    def completion(self) -> int:
        """Seconds from submission to end.

        Raises:
            ValueError: It has not ended.
        """
        if self.ended is None:
            raise ValueError(f"job {self.name!r} has not ended")
        return self.ended - self.submitted


def summary(lives: Sequence[Life]) -> dict[str, Any]:
    """Return the figures of a simulation: completion times and makespan in seconds, restarts, device hours.

    The makespan begins at time 0.

    Raises:
        ValueError: A job has not ended, or there is none.
    """
    if not lives:
        raise ValueError("there are no jobs to take the mean of")
    times = [life.completion for life in lives]
    return {
        "jobs": len(lives),
        "mean_completion_s": statistics.fmean(times),
        "p99_completion_s": float(np.percentile(times, 99)),
        "makespan_s": max(life.submitted + life.completion for life in lives),
        "restarts": sum(life.restarts for life in lives),
        "device_hours": sum(life.device_seconds for life in lives) / 3600,
    }
