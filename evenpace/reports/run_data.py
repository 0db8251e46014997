"""The values of a run's report, gathered from a source, ready for a page or for JSON."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from evenpace.overview.figures import JobFigures, Timeline
from evenpace.overview.job_view import JobView
from evenpace.reports.run_samples import SampledIterations
from evenpace.reports.run_source import RunEvent, RunFacts, RunSource
from evenpace.reports.run_totals import RunTotals, SizeChange, SplitChange, WorkerPresence

_POINTS = 500  # of a timeline
_WORKERS = 5000  # the most workers with figures
_ALL_SHOWN = 10  # workers up to which each has a line in plots
_ENDS = 3  # of more workers, this many slowest and fastest have a line


@dataclass(frozen=True)
class RunReport:
    """The report of a run."""

    facts: RunFacts  # the job, its options, and its times
    figures: JobFigures  # figures of the whole run
    timeline: Timeline  # figures over the iterations
    shown: tuple[str, ...]  # the workers with lines in the timeline, the slowest first
    presences: list[WorkerPresence]  # each worker's time in the run
    splits: int  # number of batches that were split otherwise than the one before
    split_changes: list[SplitChange]  # the changes of the split that moved the most samples
    resizes: int  # number of changes of the whole batch's size
    sizes: list[SizeChange]  # sizes of the whole batch, the last ones
    events: list[RunEvent]  # the last events, oldest first
    made: float  # time of the report, in seconds since 1970

    def as_json(self) -> dict[str, Any]:
        """Return the report as a dict for JSON."""
        return asdict(self)


def gather(source: RunSource, made: float, progress: Callable[[int], None]) -> RunReport:
    """Read a run through, and return its report.

    Args:
        made: The present time, in seconds since 1970.
        progress: Function that is called with the number of iterations of each page that was read.

    Raises:
        EvenpaceError: The source cannot be read to its end.
    """
    view = JobView(source.facts.spec["total_batch_size"])
    tally, kept = RunTotals(), SampledIterations()
    for page in source.pages():
        view.add(page)
        for iteration in page:
            tally.add(iteration)
            kept.add(iteration)
        progress(len(page))
    figures = view.figures(source.states(), _WORKERS)
    shown = _shown([worker.worker for worker in figures.workers])
    timeline = view.timeline(_POINTS)
    return RunReport(
        facts=source.facts,
        figures=figures,
        timeline=replace(timeline, workers=kept.timelines(timeline.iterations, shown)),
        shown=shown,
        presences=tally.presences,
        splits=tally.splits,
        split_changes=tally.changes,
        resizes=tally.resizes,
        sizes=tally.sizes,
        events=source.events(),
        made=made,
    )


def _shown(workers: list[str]) -> tuple[str, ...]:
    """Return the workers with lines in plots: all, or the slowest and the fastest."""
    if len(workers) <= _ALL_SHOWN:
        return tuple(workers)
    return (*workers[:_ENDS], *workers[-_ENDS:])
