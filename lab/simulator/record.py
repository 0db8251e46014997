"""The lives of simulated jobs, and figures over all of them."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from scheduler.allocation import Placement

FIGURES = frozenset(
    (
        *("jobs", "mean_completion_s", "median_completion_s", "p99_completion_s", "makespan_s"),
        *("restarts", "losses", "device_hours", "utilisation", "mean_queue"),
        *("rho_below_2", "median_rho", "p99_rho", "worst_rho"),
    )
)
"""The names of the figures of a simulation."""


class Span(NamedTuple):
    """A time in which a job has the same devices: its first second, the second of its end, the devices."""

    start: int
    end: int
    placement: Placement


@dataclass
class Life:
    """What happened to a job; times are in seconds on the cluster's clock."""

    name: str  # the job's
    application: str  # the model that it trained
    submitted: int  # time of its submission
    started: int | None = None  # time at which it first had devices; None before
    ended: int | None = None  # time at which its last epoch ended; None before
    restarts: int = 0  # changes since it first started, to another placement with devices, that had a pause
    losses: int = 0  # how often it lost its devices with a node
    device_seconds: int = 0  # device time, the pauses after changes among it
    # Times of changes, each with the placement from then on.
    placements: list[tuple[int, Placement]] = field(default_factory=list)
    # Times of changes, each with the samples of the whole batch from then on.
    batches: list[tuple[int, int]] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)  # time at which each epoch ended

    @property
    def completion(self) -> int:
        """Seconds from submission to end (ValueError: it has not ended)."""
        if self.ended is None:
            raise ValueError(f"job {self.name!r} has not ended")
        return self.ended - self.submitted

    @property
    def spans(self) -> list[Span]:
        """The times with devices, in their order (ValueError: it has not ended)."""
        ends = [*(start for start, _ in self.placements[1:]), self.submitted + self.completion]
        return [
            Span(start, end, placement)
            for (start, placement), end in zip(self.placements, ends, strict=True)
            if placement
        ]

    @property
    def ran(self) -> int:
        """Seconds with devices, the pauses after changes among them (ValueError: it has not ended)."""
        return sum(end - start for start, end, _ in self.spans)

    @property
    def waited(self) -> int:
        """Seconds without devices, before the start and later (ValueError: it has not ended)."""
        return self.completion - self.ran


def summary(lives: Sequence[Life], rhos: Sequence[float], devices: int) -> dict[str, Any]:
    """Return the figures of a simulation, those of `FIGURES` (ValueError: a job has not ended).

    Completion times and makespan are in seconds; the makespan begins at time 0. Utilisation is the share of
    the devices' time until its end that jobs have them; the queue is the mean number of jobs without devices.
    Devices of nodes that were not there count as unused.
    """
    if not lives:
        raise ValueError("there are no jobs to take the mean of")
    times = [life.completion for life in lives]
    makespan = max(life.submitted + life.completion for life in lives)
    device_seconds = sum(life.device_seconds for life in lives)
    return {
        "jobs": len(lives),
        "mean_completion_s": statistics.fmean(times),
        "median_completion_s": float(np.percentile(times, 50)),
        "p99_completion_s": float(np.percentile(times, 99)),
        "makespan_s": makespan,
        "restarts": sum(life.restarts for life in lives),
        "losses": sum(life.losses for life in lives),
        "device_hours": device_seconds / 3600,
        "utilisation": device_seconds / (devices * max(makespan, 1)),
        "mean_queue": sum(life.waited for life in lives) / max(makespan, 1),
        "rho_below_2": statistics.fmean(rho < 2 for rho in rhos),
        "median_rho": float(np.percentile(rhos, 50)),
        "p99_rho": float(np.percentile(rhos, 99)),
        "worst_rho": max(rhos),
    }
