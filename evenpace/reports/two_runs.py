"""Two runs beside each other, as values: ready for a page or for JSON."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evenpace.reports.run_data import RunReport


@dataclass(frozen=True)
class Evaluation:
    """How good the model of a run was at one moment, on samples that it was not trained on.

    Attributes:
        seconds: Since the run's start.
        loss: The mean over the samples.
        accuracy: From 0 to 1.
    """

    seconds: float
    loss: float
    accuracy: float


@dataclass(frozen=True)
class ComparedRun:
    """One of the two.

    Attributes:
        report: Of the run.
        title: What it is called beside the other.
        evaluations: In the order of time; empty where nobody evaluated.
    """

    report: RunReport
    title: str
    evaluations: Sequence[Evaluation] = ()

    @property
    def iteration_time(self) -> float | None:
        """The median duration of its iterations in seconds; None without any."""
        durations = self.report.timeline.durations
        return statistics.median(durations) if durations else None


@dataclass(frozen=True)
class TwoRuns:
    """A run, and another one that is compared with it.

    Attributes:
        first: The run.
        second: The other one.
        about: What they have in common, in words, such as the data; empty where nobody says so.
        notes: Sentences about the outcome.
        shares: The cores that each worker may use, where that is known.
    """

    first: ComparedRun
    second: ComparedRun
    about: str = ""
    notes: Sequence[str] = ()
    shares: Mapping[str, float] = field(default_factory=dict)

    @property
    def runs(self) -> tuple[ComparedRun, ComparedRun]:
        """Both, in order."""
        return self.first, self.second

    @property
    def evaluated(self) -> bool:
        """Whether anybody evaluated the model of one."""
        return any(run.evaluations for run in self.runs)

    @property
    def speedup(self) -> float | None:
        """How many times as fast the second one's median iteration is; None where one has none."""
        first, second = self.first.iteration_time, self.second.iteration_time
        return first / second if first and second else None

    def as_json(self) -> dict[str, Any]:
        """Return what is told of both, as JSON has it."""
        return {
            "speedup": self.speedup,
            "runs": [{"title": run.title, **run.report.as_json()} for run in self.runs],
        }


def two_runs(first: RunReport, second: RunReport) -> TwoRuns:
    """Compare a run with another one, each called by what tells them apart: policy, job, or the run's id."""
    facts = (first.facts, second.facts)
    named = [tuple(one.policy for one in facts), tuple(one.job for one in facts)]
    ids = tuple(one.run[:8] for one in facts)
    titles = next((pair for pair in named if pair[0] != pair[1]), ids)
    return TwoRuns(ComparedRun(first, titles[0]), ComparedRun(second, titles[1]))
