"""A job's course so far: takes iterations, gives figures. Knows no manager and no clock."""

from collections.abc import Collection, Iterable, Mapping

import numpy as np

from batchsize_manager.policies.curves import Curves
from evenpace.overview import timeline
from evenpace.overview.best import Best
from evenpace.overview.columns import CPU, QUANTITIES, SIZE, TIME, Recent, Slots
from evenpace.overview.even_split import even_durations
from evenpace.overview.figures import JobFigures, Timeline
from evenpace.overview.recent import RecentFigures
from evenpace.overview.seen_times import SeenTimes
from evenpace.overview.thinned_rows import DURATION, ThinnedRows
from idl.records import IterationRecord

_RECENT = 100  # iterations that figures of late are made of
_UNLIKELY = 0.05  # probability that slopes are flatter than told as least, and steeper than told as most
_AT_ONCE = 100_000  # times that are estimated anew for figures; where there are more, the others now and then


class JobView:
    """A job's course so far. Its memory is bounded, however long the job is and whoever comes and goes.

    Each worker's figures are kept for the last 2,000 iterations, or for 2 million numbers where workers are
    many; of iterations, up to 20,000 are kept, and sums over all.
    """

    def __init__(self) -> None:
        self._slots = Slots()
        self._recent = Recent()
        self._seen = SeenTimes()
        self._best = Best()
        self._rows = ThinnedRows()
        self._curves = self._seen.curves()  # as last fitted
        self._unrevised = 0  # iterations since then

    @property
    def last(self) -> int:
        """The last iteration that was taken; -1 without any."""
        return self._rows.last

    def add(self, iterations: Iterable[IterationRecord]) -> None:
        """Take complete iterations, ascending.

        One that is not above the last (the job was rewound) makes void those from its number on.
        """
        for iteration in iterations:
            if iteration.iteration <= self._rows.last:
                self.cut(iteration.iteration)
            self._add(iteration)

    def cut(self, iteration: int) -> int:
        """Forget an iteration and later ones.

        Returns:
            The iteration from which on others are to be added; below the one given where some of those
            before it are not kept one by one.
        """
        self._rows.cut(iteration)
        self._recent.cut(iteration)
        self._best.cut(iteration)
        return self._rows.last + 1

    def figures(self, states: Mapping[str, str] | None = None, limit: int | None = None) -> JobFigures:
        """What is made of it.

        Args:
            states: The members', by name; None where they are not known.
            limit: How many workers are listed, the slowest first; None for all.
        """
        curves = self._revise()
        return RecentFigures(self._recent, self._slots, curves, self._best, self._rows, _RECENT).figures(
            states, limit
        )

    def timeline(self, points: int = 300, workers: Collection[str] = (), first: int = 0) -> Timeline:
        """The course, for plots.

        Args:
            points: How many iterations at most; at least 1.
            workers: Whose course is told, too, as far back as it is known.
            first: From which iteration on.
        """
        self._revise()
        known: dict[str, timeline.Known] = {}
        for name in workers:
            column = self._slots.one(name)
            if column is None:
                known[name] = (np.empty(0, np.int64), np.empty((0, QUANTITIES)))
            else:
                known[name] = (self._recent.numbers, self._recent.values[:, :, column])
        return timeline.make(self._rows.rows, points, first, known)

    def _add(self, iteration: IterationRecord) -> None:
        columns = self._slots.find(iteration.workers)
        if columns is None:
            keep = self._slots.give(iteration.workers, self._recent.in_use)
            if keep is not None:
                for part in (self._recent, self._seen, self._best):
                    part.resize(keep, self._slots.count)
            columns = self._slots.find(iteration.workers)
            assert columns is not None
        self._recent.append(iteration, columns)
        row = self._recent.values[-1]
        sizes, times = row[SIZE, columns], row[TIME, columns]
        self._seen.observe(sizes, times, row[CPU, columns], columns)
        self._best.append(iteration.iteration, row[SIZE], row[TIME])
        self._rows.append(iteration)
        self._unrevised += 1
        if 2 * self._unrevised >= self._recent.most:  # before any of them is left out
            self._revise(len(self._recent))

    def _revise(self, least: int = 0) -> Curves:
        """Estimate anew what even splits would have brought, by what is known of time curves by now.

        Args:
            least: Of how many of the last iterations, at least.

        Returns:
            The likely curves, (columns,).
        """
        if self._unrevised:
            least = max(least, self._unrevised, _RECENT, _AT_ONCE // max(1, self._slots.count))
            self._unrevised = 0
            self._curves = self._seen.curves()
            cases = [self._curves.tilted(_UNLIKELY), self._curves, self._curves.tilted(1 - _UNLIKELY)]
            values = self._recent.values[-least:]
            rows = self._rows.rows[len(self._rows.rows) - len(values) :]
            even = even_durations(rows[:, DURATION], values[:, SIZE], values[:, TIME], cases)
            self._rows.revise(even.T)
        return self._curves
