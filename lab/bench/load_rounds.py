"""Barrier rounds put together from the generators' reports, and their figures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from idl.errors import ProtocolError, UnavailableError

_WARM_UP = 5  # first rounds of each job, which do not count


@dataclass
class _Part:
    """One round as far as generators have reported: times of the last report sent and answer received."""

    sent: float = 0.0
    answered: float = 0.0
    samples: int = 0
    reports: int = 0


@dataclass
class Rounds:
    """The rounds of all jobs."""

    total: int  # samples of a whole batch, to which each round's counts must sum
    generators: int  # number of generators, each of which reports on each round
    # For each job, its rounds: time of the last answer on the monotonic clock, and the round's seconds.
    finished: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    _parts: dict[tuple[str, int], _Part] = field(default_factory=dict)

    def add(self, job: str, iteration: int, sent: float, answered: float, samples: int) -> None:
        """Add one generator's part of a round."""
        part = self._parts.setdefault((job, iteration), _Part())
        part.sent, part.answered = max(part.sent, sent), max(part.answered, answered)
        part.samples += samples
        part.reports += 1
        if part.reports < self.generators:
            return
        del self._parts[job, iteration]
        if part.samples != self.total:
            raise ProtocolError(
                f"{job}, iteration {iteration}: the next counts sum to {part.samples}, not {self.total}"
            )
        self.finished.setdefault(job, []).append((part.answered, part.answered - part.sent))

    def count(self) -> int:
        """Return the number of finished rounds of all jobs."""
        return sum(len(rounds) for rounds in self.finished.values())

    def slowest(self) -> int:
        """Return the number of finished rounds of the job that has fewest."""
        return min((len(rounds) for rounds in self.finished.values()), default=0)


def measured(finished: Mapping[str, Sequence[tuple[float, float]]], elapsed: float) -> dict[str, Any]:
    """Return figures of the rounds of `elapsed` seconds (UnavailableError: there are too few rounds)."""
    after = {job: rounds[_WARM_UP:] for job, rounds in finished.items()}
    if not after or not all(after.values()):
        raise UnavailableError(
            f"too few rounds in {elapsed:.0f} s: {_WARM_UP} of each job are for warming up"
        )
    by_job = {job: _latency([seconds for _, seconds in rounds]) for job, rounds in after.items()}
    together = sorted(entry for rounds in after.values() for entry in rounds)
    count = sum(len(rounds) for rounds in finished.values())
    began = together[0][0]
    minutes: dict[int, list[float]] = {}
    for at, seconds in together:
        minutes.setdefault(int((at - began) / 60), []).append(seconds)
    return {
        "seconds": elapsed,
        "rounds": count,
        "rounds_per_second": count / elapsed,
        "round_ms": _latency([seconds for _, seconds in together]),
        "by_job": by_job,
        "by_minute": [_latency(values) for values in minutes.values()],
    }


def _latency(seconds: Sequence[float]) -> dict[str, float]:
    """Return statistics of latencies, in milliseconds."""
    p50, p99, p999 = np.percentile(seconds, [50, 99, 99.9]) * 1e3
    return {
        "rounds": len(seconds),
        "p50": float(p50),
        "p99": float(p99),
        "p99.9": float(p999),
        "max": max(seconds) * 1e3,
        "p99_to_p50": float(p99 / p50),
    }
