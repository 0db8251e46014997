"""The choice of the next batch's size: the sizer, its bounds, and all that it goes by.

Must not know how batches are placed or split, nor who asked for a sizer.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median

import numpy as np

from batchsize_manager.job.history import History
from batchsize_manager.policies import Participant, Policy, make_policy
from batchsize_manager.sizers import MEASURING, Choice, Situation, Sizing
from idl.measures import work_of_batch
from idl.plan import JobSpec
from idl.records import IterationRecord, WorkerRecord

_SHOWN = 500  # of the latest records, those that time curves observe at once, at most
_SHOWN_WORKERS = 3000  # the same, in workers times records, so that a choice takes little time in large jobs
_RECENT = 20  # of the latest records, those that the time beside the workers' is the median of


class BatchSizer:
    """The chooser of the size of a job's batches.

    Args:
        sizing: The way in which it is chosen at first.
        spec: The data set and the script's sizes.
        history: The job's records, and the noise from them.

    Attributes:
        sizing: The way in which the size is chosen now.
        reason: Why the size is what it is, in words; empty before the first choice.

    Raises:
        InvalidRequestError: The sizer follows a schedule, but the script has none.
    """

    def __init__(self, sizing: Sizing, spec: JobSpec, history: History) -> None:
        self._spec = spec
        self._history = history
        self._curves: Policy | None = None  # time curves, where the job's policy has none
        self._members: Sequence[Participant] = ()
        self._shown = -1  # the last iteration that the curves have observed
        self.sizing = sizing
        self.use(sizing)

    def use(self, sizing: Sizing) -> None:
        """Choose in another way from now on.

        Raises:
            InvalidRequestError: The sizer follows a schedule, but the script has none.
        """
        self._sizer = sizing.make(self._spec)
        self._epoch = -1  # the last one that it was asked for
        self.sizing, self.reason = sizing, ""

    @property
    def name(self) -> str:
        """The name of the sizer."""
        return self.sizing.named(self._spec)

    @property
    def adapts(self) -> bool:
        """True if the size may be changed to what the members can take."""
        return self.name in MEASURING

    def is_due(self, iteration: int, epoch: int) -> bool:
        """Return whether the sizer is to be asked for an iteration of an epoch; if so, `choose` follows."""
        due = self._sizer.every > 0 and not iteration % self._sizer.every
        due = due and not (self._sizer.by_epoch and epoch == self._epoch)
        self._epoch = epoch
        return due

    @property
    def least(self) -> int:
        """The fewest samples that may be chosen."""
        return self.sizing.bounds(self._spec)[0]

    def within(self, size: int, members: Sequence[Participant]) -> int:
        """Return the size that is nearest to a size of those which the members can take and bounds allow."""
        least, most = self._bounds(members)
        return max(least, min(size, most)) if self.adapts else size

    def gain(self, size: int) -> float:
        """Return `Scaling.gain` of a size, by the likely noise scale; by the least where that is infinite."""
        noise, first = self._history.noise.noise, self._spec.total_batch_size
        least, likely, _ = work_of_batch(noise, first, size / first)
        is_known = math.isfinite(noise.scale) and noise.interval() != (0.0, math.inf)
        return likely if is_known else least

    def choose(
        self,
        iteration: int,
        epoch: int,
        size: int,
        members: Sequence[Participant],
        policy: Policy,
        observed: Callable[[IterationRecord], Mapping[str, WorkerRecord]],
    ) -> Choice | None:
        """Choose the size of an iteration's batch.

        Args:
            iteration: The iteration, which is to be planned.
            size: Samples of a whole batch so far.
            members: The members that it is planned for, with bounds in units.
            observed: Function from a record to what policies observe of it, in units.

        Returns:
            The size, with the reason; None where none was chosen.
        """
        least, most = self._bounds(members)
        step = self._spec.unit * max((one.bounds.granularity for one in members), default=1)
        most = max(least, most // step * step)

        def seconds(sizes: Sequence[int]) -> list[float] | None:
            totals = [len(self._spec.cuts(one)) for one in sizes]
            times = policy.seconds(totals)
            if times is None:
                times = self._own_curves(members, map(observed, self._unseen(len(members)))).seconds(totals)
            if times is None:
                return None
            beside = self._overhead
            return [one + beside for one in times]

        at = Situation(iteration, epoch, size, least, most, step, self._history.noise.noise, seconds)
        choice = self._sizer.choose(at)
        if choice is not None:
            self.reason = choice.why
        return choice

    def _bounds(self, members: Sequence[Participant]) -> tuple[int, int]:
        least, most = self.sizing.bounds(self._spec)
        minima = self._spec.unit * sum(one.bounds.minimum for one in members)
        maxima = self._spec.unit * sum(one.bounds.maximum for one in members)
        most = max(1, min(most, maxima))
        return min(max(least, minima), most), most

    @property
    def _overhead(self) -> float:
        """Seconds of an iteration beside the longest batch processing time: the usual ones of late."""
        late = self._history.latest(_RECENT)
        longest = [float(np.max(one.batch_processing_times, initial=0.0)) for one in late]
        return median([max(0.0, one.duration - its) for one, its in zip(late, longest, strict=True)] or [0.0])

    def _unseen(self, members: int) -> Iterable[IterationRecord]:
        latest = self._history.latest(min(_SHOWN, max(2, _SHOWN_WORKERS // max(1, members))))
        self._shown = min(self._shown, latest[-1].iteration if latest else -1)  # the job may have gone back
        return [one for one in latest if one.iteration > self._shown]

    def _own_curves(
        self, members: Sequence[Participant], observations: Iterable[Mapping[str, WorkerRecord]]
    ) -> Policy:
        """Return the policy `learned`, for its time curves, after it has observed what is new."""
        curves = self._curves = self._curves or make_policy("learned")
        if members != self._members:
            curves.expect(sum(one.bounds.minimum for one in members), self._spec.unit)
            curves.set_members(members)
            self._members = members
        for one in observations:
            curves.observe(one)
        last = self._history.last
        self._shown = -1 if last is None else last.iteration
        return curves
