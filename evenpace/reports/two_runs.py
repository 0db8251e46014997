"""Two runs beside each other, as values: ready for a page or for JSON."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evenpace.overview import phrases
from evenpace.reports.run_data import RunReport


@dataclass(frozen=True)
class Evaluation:
    """The quality of a run's model at one moment, on samples that it was not trained on."""

    seconds: float  # time since the run's start
    loss: float  # mean over the samples
    accuracy: float  # from 0 to 1


@dataclass(frozen=True)
class ComparedRun:
    """One of two compared runs."""

    report: RunReport  # the run's report
    title: str  # the run's name beside the other one
    evaluations: Sequence[Evaluation] = ()  # evaluations in the order of time; empty where there were none

    @property
    def iteration_time(self) -> float | None:
        """The median duration of its iterations in seconds; None without any."""
        durations = self.report.timeline.durations
        return statistics.median(durations) if durations else None

    @property
    def noise_scale(self) -> float | None:
        """The scale of its gradient noise in samples; None where that is not known."""
        figures = self.report.figures
        return figures.noise_scale if figures.noise_known else None

    @property
    def work_of_twice(self) -> str | None:
        """The work of an iteration with twice the batch, as a factor or a range; None where unknown."""
        figures = self.report.figures
        work = (figures.work_of_twice_least, figures.work_of_twice, figures.work_of_twice_most)
        known = [one for one in work if one is not None]
        if not figures.noise_known or len(known) < len(work):
            return None
        return phrases.work(phrases.Estimate(*known))


@dataclass(frozen=True)
class TwoRuns:
    """A run, and another one that is compared with it."""

    first: ComparedRun  # the run
    second: ComparedRun  # the other one
    about: str = ""  # a description of what they have in common, such as the data; may be empty
    notes: Sequence[str] = ()  # sentences about the outcome
    shares: Mapping[str, float] = field(default_factory=dict)  # the cores that each worker may use, if known

    @property
    def runs(self) -> tuple[ComparedRun, ComparedRun]:
        """Both runs, in order."""
        return self.first, self.second

    @property
    def was_evaluated(self) -> bool:
        """True if the model of either run was evaluated."""
        return any(run.evaluations for run in self.runs)

    @property
    def has_noise(self) -> bool:
        """True if the gradient noise of either run is known."""
        return any(run.noise_scale is not None for run in self.runs)

    @property
    def speedup(self) -> float | None:
        """The first run's median iteration time over the second one's; None where one has no iterations."""
        first, second = self.first.iteration_time, self.second.iteration_time
        return first / second if first and second else None

    def as_json(self) -> dict[str, Any]:
        """Return both reports and the speed-up, for JSON."""
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
