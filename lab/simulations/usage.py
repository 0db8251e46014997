"""Numbers of devices and of jobs over time, from the lives of simulated jobs."""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from lab.simulator.record import Life
from scheduler.allocation import devices

Amount: TypeAlias = tuple[int, int, int]
"""Start and end of a time, in seconds, and what is added during it."""


def in_use(lives: Iterable[Life]) -> list[Amount]:
    """Return the devices that jobs have, by times."""
    return [(span.start, span.end, devices(span.placement)) for life in lives for span in life.spans]


def queue(lives: Iterable[Life]) -> list[Amount]:
    """Return the jobs without devices, by times: 1 during a job's life, less 1 while it has devices."""
    present = [(life.submitted, life.submitted + life.completion, 1) for life in lives]
    return present + [(span.start, span.end, -1) for life in lives for span in life.spans]


def averages(amounts: Sequence[Amount], edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the averages, (n,), of a sum over the times between ascending edges, in seconds, (n + 1,).

    Amounts are added up where their times overlap; nothing is there at other times.
    """
    steps = np.array([(t, a) for start, end, amount in amounts for t, a in ((start, amount), (end, -amount))])
    steps = steps.reshape(-1, 2)[np.argsort(steps.reshape(-1, 2)[:, 0], kind="stable")]
    times, level = steps[:, 0], np.cumsum(steps[:, 1])
    if not len(times):
        return np.zeros(len(edges) - 1)
    # The sum is constant between steps, so that its integral is linear there, and 0 before the first.
    integral = np.concatenate([[0.0], np.cumsum(level[:-1] * np.diff(times))])
    totals: NDArray[np.float64] = np.diff(np.interp(edges, times, integral)) / np.diff(edges)
    return totals
