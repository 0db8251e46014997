"""All that a run's report says, as values: gathered from a source, ready for a page or for JSON."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from evenpace.overview.figures import JobFigures, Timeline
from evenpace.overview.job_view import JobView
from evenpace.reports.run_samples import Kept
from evenpace.reports.run_source import RunEvent, RunFacts, RunSource
from evenpace.reports.run_totals import Presence, SizeChange, SplitChange, Tally

_POINTS = 500  # of a timeline
_WORKERS = 5000  # that are told of
_ALL_SHOWN = 10  # workers that each have a line of their own; of more, some from both ends have
_ENDS = 3


@dataclass(frozen=True)
class RunReport:
    """A run's report.

    Attributes:
        facts: What was run.
        figures: What came of it.
        timeline: Its course.
        shown: The workers with lines of their own in it, the slowest first.
        presences: Who was there when.
        splits: Batches that were split otherwise than the one before.
        split_changes: Those that moved most.
        sizes: Sizes of the whole batch.
        events: The last ones, oldest first.
        made: When the report was made, in seconds since 1970.
    """

    facts: RunFacts
    figures: JobFigures
    timeline: Timeline
    shown: tuple[str, ...]
    presences: list[Presence]
    splits: int
    split_changes: list[SplitChange]
    sizes: list[SizeChange]
    events: list[RunEvent]
    made: float

    def as_json(self) -> dict[str, Any]:
        """The same, as JSON has it."""
        return asdict(self)


def gather(source: RunSource, made: float, progress: Callable[[int], None]) -> RunReport:
    """Read a run through.

    Args:
        source: Of the run.
        made: What time it is, in seconds since 1970.
        progress: Told of each page's iterations.

    Raises:
        EvenpaceError: The source cannot be read to its end.
    """
    view, tally, kept = JobView(), Tally(), Kept()
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
        sizes=tally.sizes,
        events=source.events(),
        made=made,
    )


def _shown(workers: list[str]) -> tuple[str, ...]:
    """Those with lines of their own: all, or the slowest and the fastest."""
    if len(workers) <= _ALL_SHOWN:
        return tuple(workers)
    return (*workers[:_ENDS], *workers[-_ENDS:])
