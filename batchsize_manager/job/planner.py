"""The next plan: the batch's place and size, split by the policy among the members that are planned for."""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from batchsize_manager.job.batch_sizer import BatchSizer
from batchsize_manager.job.batch_sizes import Batches
from batchsize_manager.job.config import JobConfig
from batchsize_manager.job.costs import BatchCosts, KnownCosts
from batchsize_manager.job.effects import Outbox
from batchsize_manager.job.members import Members
from batchsize_manager.job.progress import IterationProgress, scaled_times
from batchsize_manager.policies import Participant, Policy, Split
from batchsize_manager.policies.base import MEMORY_GUARD
from batchsize_manager.policies.even import Even
from batchsize_manager.policies.solver import InfeasibleError
from idl.cuts import Cuts
from idl.plan import make_plan
from idl.records import IterationRecord, WorkerRecord
from predictors import Weights


class Planner:
    """The maker of a job's plans, one for each iteration.

    Args:
        config: The job's configuration.
        policy: The policy that splits batches at first.
        sizer: The chooser of their size.
        members: The job's members; some may be released here, if the policy finds them dispensable.
        outbox: Collects the effects.
    """

    def __init__(
        self,
        config: JobConfig,
        policy: Policy,
        batches: Batches,
        sizer: BatchSizer,
        members: Members,
        outbox: Outbox,
    ) -> None:
        self.policy = policy  # the policy that splits batches now
        self._config = config
        self.batches = batches
        self.sizer = sizer
        self._members = members
        self._outbox = outbox
        self._last_warning: tuple[str, ...] = ()
        self._has_changed = False  # whether the policy does not have the present members yet
        self._unit = batches.spec.unit  # samples; the policy knows batches, bounds and counts in units alone
        self.costs = KnownCosts(batches.spec.mean_cost)  # of the samples that come next

    @property
    def batch_size(self) -> int:
        """The samples of a whole batch for the members that are planned for."""
        return self.batches.size(len(self._members.staying))

    @property
    def padded_size(self) -> int:
        """The samples of `batch_size` with a whole last micro-batch, as members' bounds are in whole ones."""
        return self.batches.padded(len(self._members.staying))

    def least_size(self, members: int | None = None) -> int:
        """Return the samples that members must be able to take together, in whole micro-batches.

        It is a whole batch, or the smallest that the sizer may make of it.

        Args:
            members: Number of members; None: those that are planned for.
        """
        least = min(self.sizer.least, self.batches.total) if self.sizer.adapts else None
        return self.batches.padded(len(self._members.staying) if members is None else members, least)

    def can_do_without(self, workers: Collection[str]) -> bool:
        """Return whether the members that are planned for can take a whole batch without some of them."""
        left = [m.bounds.maximum for name, m in self._members.staying.items() if name not in workers]
        return bool(left) and sum(left) >= self.least_size(len(left))

    @property
    def lack(self) -> str:
        """A sentence that says how many samples the members that are planned for fall short of a batch."""
        most, least = sum(m.bounds.maximum for m in self._members.staying.values()), self.least_size()
        if self._unit == 1:
            return f"the workers can take {most} samples together at most, less than a batch of {least}"
        return (
            f"the workers can take {most // self._unit} micro-batches of {self._unit} samples together at "
            f"most, less than the {least // self._unit} of a batch"
        )

    def members_changed(self) -> None:
        """Have the policy plan for the present members (InfeasibleError: they cannot take the batch).

        It gets them before the next plan, once for all those that have come and gone until then.
        """
        self._has_changed = True
        if not self.can_do_without(()):
            self._set_members()

    def _set_members(self) -> None:
        """Give the policy the members that are planned for (InfeasibleError: they cannot take the batch)."""
        self._has_changed = False
        if participants := self._participants:
            size = self.sizer.within(self.batches.total, participants)
            if size != self.batches.total:
                self._resize(size, "its bounds and those of the workers allow no other")
            self._expect()
            with self._naming_micro_batches(self.batch_size):
                self.policy.set_members(participants)

    def observe(self, observations: Mapping[str, WorkerRecord]) -> None:
        """Have the policy observe an iteration's records, by worker."""
        self.policy.observe(self._in_units(observations))
        self._outbox.effects.fit = True

    def _in_units(self, observations: Mapping[str, WorkerRecord]) -> Mapping[str, WorkerRecord]:
        """Return records with batch sizes in units, and the times of as many whole units at the same speed.

        Where costs are known, a unit is a sample of mean cost. With micro-batches a larger share takes no
        more memory, since they are computed one after the other, so the memory's usage is cut to what no
        policy counts as short.
        """
        if self.batches.spec.micro_batch is None and self.batches.spec.total_cost is None:
            return observations
        in_units = {}
        for name, record in observations.items():
            count = record.batch_size
            if count and not math.isnan(record.cost):
                number = max(1, round(record.cost / self._unit))
                memory = record.memory_usage if self._unit == 1 else min(record.memory_usage, MEMORY_GUARD)
                scaled = scaled_times(record, number * self._unit / record.cost)
                in_units[name] = scaled._replace(batch_size=number, memory_usage=memory)
                continue
            if self._unit == 1:
                in_units[name] = record
                continue
            cuts = self._cuts(count)
            number = cuts.number(count)
            whole = number * self._unit / count if count else 1.0
            of_last = self._unit / (count - cuts.position(number - 1)) if count else 1.0
            memory = min(record.memory_usage, MEMORY_GUARD)
            scaled = scaled_times(record, whole, of_last)
            in_units[name] = scaled._replace(batch_size=number, memory_usage=memory)
        return in_units

    def take_fit(self, policy: Policy, weights: Weights | None) -> bool:
        """Give a policy the weights of the fit that it handed out last, or None where the fit failed.

        Returns:
            True if the policy got them, False if it was replaced meanwhile.
        """
        if policy is not self.policy:
            return False
        policy.take_fit(weights)
        return True

    def show(self, records: Iterable[IterationRecord]) -> None:
        """Have a new policy, which knows the members, observe earlier iterations, oldest first."""
        if self._has_changed and self.can_do_without(()):
            self._set_members()
        for record in records:
            self.observe(record.parts)

    def plan_next(self, iteration: int, attempt: int, now: float) -> IterationProgress:
        """Take the next batch, release the members that it is faster without, and plan it for the others.

        Args:
            iteration: The iteration to plan; all before it are planned.

        Raises:
            InfeasibleError: The members cannot take the batch.
        """
        if self._has_changed:
            self._set_members()
        self._choose_size(iteration)
        last_change = self.batches.last_change
        epoch, start, total = self._take(iteration)
        split = self._split(total)
        if leaving := self._releasable(split.dispensable):
            self._members.release(leaving, iteration - 1)
            self._set_members()
            self._members.let_go()
            epoch, start, total = self._take(iteration)
            split = self._split(total)
        self._outbox.changed |= self.batches.last_change is not last_change
        warnings = (*split.warnings, *split.dispensable.values())
        if warnings and warnings != self._last_warning:
            for warning in warnings:
                self._outbox.log(warning)
        self._last_warning = warnings
        staying = self._members.staying
        cuts, costs = self._cuts(total), self._costs(epoch, start, total)
        shares: dict[str, int] = {}
        if costs is None:
            counts = dict(zip(staying, cuts.counts(split.counts), strict=True))
        else:
            shares = dict(zip(staying, split.counts, strict=True))
            bounds = [member.bounds.in_units(self._unit) for member in staying.values()]
            counts = dict(zip(staying, costs.cut(split.counts, bounds, cuts), strict=True))
        predicted = dict(zip(staying, split.predicted_speeds, strict=False))
        at_once = dict(zip(staying, split.at_once, strict=False))
        scaling = self.batches.scaling(iteration)
        plan = make_plan(iteration, epoch, start, counts, attempt, self._unit, at_once, scaling)
        return IterationProgress(plan, now, predicted, costs, shares)

    def _costs(self, epoch: int, start: int, total: int) -> BatchCosts | None:
        """Return what the samples of a batch cost; None where that is not known."""
        costs = self.costs.of(epoch, start, total)
        is_sorted = self.batches.spec.sorted_by is not None
        return None if costs is None else BatchCosts.of(costs, self._cuts(total), is_sorted=is_sorted)

    @property
    def _participants(self) -> list[Participant]:
        return [
            Participant(name, member.bounds.in_units(self._unit), member.device)
            for name, member in self._members.staying.items()
        ]

    def _expect(self) -> None:
        """Tell the policy the size of whole batches."""
        self.policy.expect(len(self._cuts(self.batch_size)), self._unit)

    def _split(self, total: int) -> Split:
        """Have the policy split a batch of `total` samples; evenly, if what it says cannot be."""
        units = len(self._cuts(total))
        with self._naming_micro_batches(total):
            split = self.policy.split(units)
            counts = split.counts
            if (
                len(counts) == len(self._members.staying)
                and sum(counts) == units
                and all(one >= 0 for one in counts)
            ):
                return split
            even = Even()
            even.set_members(self._participants)
            even.expect(units, self._unit)
            warning = f"the policy split {units} into {counts}, which cannot be: this batch is split evenly"
            return replace(even.split(units), warnings=(*split.warnings, warning))

    @contextmanager
    def _naming_micro_batches(self, total: int) -> Iterator[None]:
        """Have an `InfeasibleError` of the policy, about a batch of `total` samples, name its units."""
        try:
            yield
        except InfeasibleError as error:
            cuts = self._cuts(total) if self._unit > 1 else None
            raise InfeasibleError(error.total, error.capacity, error.workers, cuts) from None

    def _take(self, iteration: int) -> tuple[int, int, int]:
        return self.batches.take(iteration, len(self._members.staying), self.sizer.gain)

    def _choose_size(self, iteration: int) -> None:
        """Let the sizer choose the size of an iteration's batch, which may be the first of another size."""
        epoch, _ = self.batches.following(iteration)
        if not self.sizer.is_due(iteration, epoch):
            return
        choice = self.sizer.choose(
            iteration,
            epoch,
            self.batches.total,
            self._participants,
            self.policy,
            lambda record: self._in_units(record.parts),
        )
        if choice is not None and choice.size != self.batches.total:
            self._resize(choice.size, choice.why)
            self._expect()

    def _resize(self, size: int, why: str) -> None:
        self._outbox.log(f"the batch size goes from {self.batches.total:,} to {size:,}: {why}")
        self.batches.total = size

    def _cuts(self, total: int) -> Cuts:
        return self.batches.spec.cuts(total)

    def _releasable(self, dispensable: Mapping[str, str]) -> Mapping[str, str]:
        """Return the dispensable members that may be released, with why, if the others can take the batch."""
        members = self._members.by_name
        leaving = {name: why for name, why in dispensable.items() if not members[name].unreleasable}
        return leaving if self._config.release and self.can_do_without(leaving.keys()) else {}
