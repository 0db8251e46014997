"""View of one job: takes the records of its iterations, gives figures. It knows no manager and no clock."""

from collections.abc import Collection, Iterable, Mapping
from math import inf

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
from idl.noise_estimate import NoiseEstimate
from idl.records import IterationRecord

_RECENT = 100  # iterations that figures of the last iterations are computed from
_UNLIKELY = 0.05  # probability of slopes flatter than in the flattest case, or steeper than in the steepest


class JobView:
    """View of a job's iterations so far, in bounded memory, however long the job is and whoever joins.

    Each worker's measurements are kept for the last 2,000 iterations, or fewer with many workers, up to
    2 million numbers; a row of figures is kept for up to 20,000 iterations, and sums over all.

    Args:
        first_size: Samples of a batch whose statistical efficiency is 1: of the script's; None where they are
            not known, so that efficiency and goodput are not.
    """

    def __init__(self, first_size: int | None = None) -> None:
        self._first_size = first_size
        self._slots = Slots()
        self._recent = Recent()
        self._seen = SeenTimes()
        self._best = Best()
        self._rows = ThinnedRows()
        self._noise = NoiseEstimate()
        self._noise_scale = np.nan  # by the estimate, where it is known
        self._cases = self._fit()
        self._unrevised = 0  # iterations added since the last fit
        self._unsettled = 0  # iterations added since the last fit that is due, whether anybody looks or not

    @property
    def last(self) -> int:
        """Return the last iteration that was added; -1 without any."""
        return self._rows.last

    def add(self, iterations: Iterable[IterationRecord]) -> None:
        """Add complete iterations, ascending.

        An iteration that is not above the last one (the job was rewound) replaces those from its number on.
        """
        for iteration in iterations:
            if iteration.iteration <= self._rows.last:
                self.cut(iteration.iteration)
            self._add(iteration)

    def cut(self, iteration: int) -> int:
        """Drop the iterations from `iteration` on.

        Returns:
            The iteration to be added next. It is below the given one where the rows of iterations just
            before that were thinned out.
        """
        self._rows.cut(iteration)
        self._recent.cut(iteration)
        self._best.cut(iteration)
        return self._rows.last + 1

    def figures(self, states: Mapping[str, str] | None = None, limit: int | None = None) -> JobFigures:
        """Return the job's figures.

        Args:
            states: The members' states, by name; None where they are not known.
            limit: Number of workers listed, the slowest first; None for all.
        """
        self._look()
        recent = RecentFigures(self._recent, self._slots, self._cases, self._best, self._rows, _RECENT)
        return recent.figures(states, limit, self._noise, self._first_size)

    def timeline(self, points: int = 300, workers: Collection[str] = (), last: float = inf) -> Timeline:
        """Return a timeline of the job's iterations, for plots.

        Args:
            points: Number of iterations at most; at least 1.
            workers: Names of the workers that get a timeline of their own, as far back as they are kept.
            last: Number of the newest iterations that the timeline is of.
        """
        self._look()
        known: dict[str, timeline.Known] = {}
        for name in workers:
            column = self._slots.column(name)
            if column is None:
                known[name] = (np.empty(0, np.int64), np.empty((0, QUANTITIES)))
            else:
                known[name] = (self._recent.numbers, self._recent.values[:, :, column])
        first = max(0.0, self._rows.last + 1 - last)
        return timeline.make(self._rows.values, points, first, known, self._first_size)

    def _add(self, iteration: IterationRecord) -> None:
        columns = self._slots.find(iteration.workers)
        if columns is None:
            keep = self._slots.assign(iteration.workers, self._recent.in_use)
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
        estimate = self._noise.observe_step(iteration.norms)
        if estimate is not self._noise:
            self._noise, noise = estimate, estimate.noise
            self._noise_scale = np.nan if noise.known_scale is None else noise.known_scale
        self._rows.append(iteration, self._noise_scale)
        self._unrevised += 1
        self._unsettled += 1
        if self._unsettled >= self._due:
            self._unsettled = 0
            self._revise(len(self._recent))

    @property
    def _due(self) -> int:
        """Return the number of iterations after which a fit is due: each row has one before it goes."""
        return -(-self._recent.most // 2)

    def _look(self) -> None:
        """Estimate anew the rows that the next fit that is due will cover, if there are new iterations.

        The others stay as that of the last one has them. So who looks, and when, changes no sum over all.
        """
        if self._unrevised:
            self._revise(self._recent.most - self._due + self._unsettled)

    def _fit(self) -> list[Curves]:
        """Return the workers' time curves, the flattest, the likely, and the steepest; (columns,) each."""
        curves = self._seen.curves()
        return [curves.tilted(_UNLIKELY), curves, curves.tilted(1 - _UNLIKELY)]

    def _revise(self, most: int) -> None:
        """Fit the time curves again, and estimate the last iterations' durations with an even split by them.

        Args:
            most: Number of the last iterations to estimate, as far as they are kept.
        """
        self._unrevised = 0
        self._cases = self._fit()
        values = self._recent.values[-most:]
        rows = self._rows.values[len(self._rows.values) - len(values) :]
        even = even_durations(rows[:, DURATION], values[:, SIZE], values[:, TIME], self._cases)
        self._rows.revise(even.T)
