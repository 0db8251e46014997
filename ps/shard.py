"""One shard of one job: its parameters, the sum of the weighted gradients, and the optimiser's steps.

This module knows slices and samples, but no sockets and no clock. Gradients are added piece by piece as they
arrive, while they are in the cache; a whole gradient is held in deterministic mode only. A step takes all
workers' gradients (BSP). `exact_shard`, `backup_shard` and `asynchronous_shard` have the other kinds of
shard.
"""

import math
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch

from idl.errors import InvalidRequestError, RewoundError, UnavailableError
from idl.gradient_norms import StepNorms
from idl.layout import Group, Layout
from idl.plan import Assignment
from ps.gradient_norms import NormMeter
from ps.optimizer_state import ShardSnapshot
from ps.parameters import Contribution, Parameters

_PIECE, _LEAST_PIECE = 2**18, 2**16  # bytes; a piece and its part of the sum stay in a core's cache
_RANGE = 2**20  # bytes of a partial step that are stepped at once,
_RANGES = 32  # or, where that is less, one of so many parts of all
# Relative: a schedule that is computed on another kind of device differs in its last digits.
_OPTION_TOLERANCE = 1e-5


class Shard(Parameters):
    """A shard that steps with the weighted mean of all workers' gradients (BSP).

    An iteration is over when each element of the gradient has arrived for each sample of the batch; then the
    optimiser takes one step with the gradient sum(x_i * g_i) / sum(x_i) (LB-BSP, section 3.4); with weights
    in place of x_i where gradients are no means over samples.

    Slices are known by their place, whichever worker sends them. One whose connection broke stays in the sum
    with the elements that had arrived; it, or slices that divide its samples otherwise, supply the rest.
    Contributions are thus rectangles of samples and elements, which never overlap and in the end tile the
    batch.

    Args:
        layout: Layout of the shard's part of the parameters.
        deterministic: Whether gradients are held until all have arrived and summed in the order of their
            slices, so that two runs are the same to the last bit, at the cost of a copy for each worker. One
            whose connection broke is dropped then.
        partial_steps: Whether steps may be taken range by range as gradients arrive, which holds the
            parameters and the optimiser's state once more; see `step_in_part`.
    """

    def __init__(self, layout: Layout, deterministic: bool = False, partial_steps: bool = True) -> None:
        super().__init__(layout)  # `_gradient` is the sum of (x_i / total) * g_i until `_divide`
        self._deterministic = deterministic
        self._meter = NormMeter(layout)
        self._total: int | None = None  # samples of the current batch, known from its first push
        self._batch: tuple[int, int] | None = None  # epoch and first position of the batch, likewise
        self._missing = 0  # pairs of a sample and an element that have not arrived, once the total is known
        self._contributions: list[Contribution] = []
        self.partial_steps = partial_steps and not deterministic
        self._options_before: tuple[Any, ...] = ()  # a partial step: the groups, and the optimiser's options
        self._checked_groups: tuple[Any, ...] = ()  # the last arguments of `_merged`, and its result
        self._differences: dict[str, str] = {}  # by worker: how its options differed from a step's
        self._divided = 0  # the element up to which `_gradient` was divided by the weights

    def start_worker(self, worker: str, groups: Sequence[Group]) -> None:
        """Forget how the options of an earlier start of the worker differed."""
        self._differences.pop(worker, None)

    def set_options(self, contribution: Contribution, groups: Sequence[Group]) -> None:
        """Set the options for the current iteration's step; see `Parameters.set_options`."""
        contribution.groups = self._merged(tuple(groups))

    def check_options(self, worker: str) -> None:
        """Check that the steps with a worker's gradients were taken with that worker's options.

        Raises:
            InvalidRequestError: One was not; the error names the first option that differed, and both values.
        """
        if worker in self._differences:
            raise InvalidRequestError(self._differences[worker])

    def has_used(self, part: Assignment, worker: str = "") -> bool:
        """Return whether all samples of the slice are in a step or in the sum, from whichever worker."""
        if not self.initialised or part.iteration != self.version:
            return self.initialised and part.iteration < self.version
        counted = sum(
            min(part.end, other.end) - max(part.start, other.start)
            for other in self._overlapping(part)
            if self._is_whole(other)
        )
        return counted == part.count

    def begin(
        self, part: Assignment, worker: str = "", early: str = "", weight: float | None = None
    ) -> Contribution:
        """Begin a push of a slice's gradient, or continue where a push of the same samples broke off.

        Raises:
            InvalidRequestError: The shard is at another iteration, the slice does not fit into the batch, or
                some gradients of the batch have weights, and others none.
            RewoundError: Another has broken off a gradient of these samples that may have changed since.
            UnavailableError: Others have pushed a part of its samples.
        """
        if not self.initialised:
            raise InvalidRequestError("push before the parameters are initialised")
        if part.iteration != self.version:
            raise InvalidRequestError(
                f"push for iteration {part.iteration}, but the parameter server is at {self.version}"
            )
        self._check_batch(part)
        for other in self._contributions[:1]:  # as which all others are
            if (other.weight is None) != (weight is None):
                given, left_out = (other.worker, worker) if weight is None else (worker, other.worker)
                raise InvalidRequestError(
                    f"{given!r} says what its gradient is a mean over, and {left_out!r} does not: either all "
                    f"workers of a job do, or none"
                )
        self._meter.prepare(self._optimizer, self.steps)
        first = max(
            (self._first_missing_element(other, part, early) for other in self._overlapping(part)), default=0
        )
        # Contributions that begin at the first element share no samples: their counts are the samples so far.
        placed = sum(other.count for other in self._contributions if not other.first)
        if not first and placed + part.count > part.total:
            raise InvalidRequestError(
                f"slice of {part.count} samples: more than are left of a batch of {part.total}"
            )
        held = self._buffer() if self._deterministic else None
        if self._total is None:
            self._total = part.total
            self._missing = part.total * self.layout.elements
        if part.batch_start is not None:
            self._batch = part.epoch, part.batch_start
        contribution = Contribution(
            part.start, part.count, worker, first, first, early=early, held=held, weight=weight
        )
        self._contributions.append(contribution)
        return contribution

    def add(self, contribution: Contribution, piece: torch.Tensor) -> None:
        """Add the gradient's next elements, (n,), to the sum."""
        if not contribution.open:
            return  # the step has been taken without the rest of it, or it was dropped
        begin = contribution.done
        # Without weight it may be anything.
        squares = self._squares(contribution, begin, piece) if contribution.mass else 0.0
        is_finite = contribution.is_finite
        if not math.isfinite(squares) and is_finite:  # else it costs nothing to know
            is_finite = self._meter.is_finite(begin, piece)
        self._accumulate(contribution, begin, piece)  # the last that may fail; then the piece does not count
        contribution.done += len(piece)
        contribution.squares += squares
        contribution.is_finite = is_finite
        self._missing -= contribution.count * len(piece)

    def interrupt(self, contribution: Contribution) -> None:
        """Keep what has arrived in the sum; a later push of these samples continues from there."""
        if not contribution.open:
            return
        contribution.open = False
        if self._is_whole(contribution):
            return
        if contribution.held is not None:
            self._missing += contribution.count * (contribution.done - contribution.first)
            contribution.done, contribution.squares = contribution.first, 0.0
            self._release(contribution)
        if contribution.done == contribution.first:
            self._contributions = [other for other in self._contributions if other is not contribution]
        if not self._contributions:
            self._total = self._batch = None

    def forfeit(self, iteration: int, start: int, count: int, total: int) -> None:
        """Do nothing: in BSP the manager assigns the slice to other workers."""

    def drop(self) -> None:
        """Drop all gradients that have arrived since the last step."""
        self._next_batch([])
        if self.initialised:
            self._gradient.zero_()
        if self.partial_step is not None and self.partial_step.end:
            self.partial_step.end = 0
            self._restore_options()

    def snapshot(self) -> ShardSnapshot:
        """Return all that the next steps depend on except their gradients; valid until the next step."""
        snapshot = super().snapshot()
        if not self.has_partial_step:
            return snapshot
        groups, _ = self._options_before
        return replace(snapshot, layout=replace(self.layout, groups=groups))

    def step_in_part(self) -> int:
        """Take the next step for the elements for which the gradients of all samples have arrived.

        A range of some length at a time; of an optimiser's first step, which makes its state, nothing.

        Returns:
            The element up to which it is taken.
        """
        if self.partial_step is None:
            return 0
        end = self._arrived()
        if end < self.layout.elements:
            end -= end % max(1, min(_RANGE // self._dtype.itemsize, self.layout.elements // _RANGES))
        if end > self.partial_step.end:
            if not self.partial_step.end:
                self._note_options()
                self._settle_options(self._contributions)
                if not self.partial_step.is_possible:
                    self._restore_options()
                    return 0
            assert self._total is not None
            self._divide(self._contributions, self._total, end)
            self.partial_step.advance(self._parameters, self._gradient, end)
        return self.partial_step.end

    @property
    def lack(self) -> str:
        """What the next step waits for, in words."""
        if not self.initialised:
            return super().lack
        if self._total is None:
            return f"no worker has pushed a gradient for iteration {self.version}"
        if not self._missing:
            return f"all gradients for iteration {self.version} are here, but perhaps not at other shards"
        missing = -(-self._missing // self.layout.elements)
        pushed = sorted({one.worker for one in self._contributions if self._is_whole(one)})
        return (
            f"the gradient of {missing} of the {self._total} samples of iteration {self.version} has not "
            f"been pushed; {', '.join(pushed) or 'nobody'} has pushed"
        )

    @property
    def contributors(self) -> AbstractSet[str]:
        """Return the workers that have sent a part of this iteration's gradient."""
        return {contribution.worker for contribution in self._contributions}

    @property
    def is_complete(self) -> bool:
        """Return whether this iteration's gradient has arrived completely."""
        return self._total is not None and not self._missing

    @property
    def next_place(self) -> tuple[int, int] | None:
        """Return the `place` after a step with the present batch; None if it is not known."""
        if self._batch is None or self._total is None:
            return None
        epoch, start = self._batch
        return epoch, start + self._total

    def step(self) -> None:
        """Take the optimiser's step with the gradients of the batch."""
        assert self._total is not None
        if self._deterministic:
            self._sum_up(self._contributions, self._total)
        self._divide(self._contributions, self._total, self.layout.elements)
        self._settle_options(self._contributions)
        self._note_differences(self._contributions)
        self._measure(self._contributions)
        self._apply()
        self.place = self.next_place
        self._gradient.zero_()
        self._next_batch(self._contributions)
        self.version += 1

    def _accumulate(self, contribution: Contribution, begin: int, piece: torch.Tensor) -> None:
        """Add the elements from `begin` on, (n,), to the sum, or hold them."""
        assert self._total is not None
        if contribution.held is not None:
            contribution.held[begin : begin + len(piece)] = piece
        else:
            self._add_weighted(contribution, begin, piece, self._total)

    def _add_weighted(self, contribution: Contribution, begin: int, piece: torch.Tensor, total: int) -> None:
        """Add the elements from `begin` on, (n,), to the sum: gradients by weight, statistics by samples."""
        if contribution.weight is None:
            self._gradient[begin : begin + len(piece)].add_(piece, alpha=contribution.count / total)
            return
        for low, high, is_statistics in self._runs(begin, begin + len(piece)):
            mass = contribution.count if is_statistics else contribution.weight
            if mass:
                self._gradient[low:high].add_(piece[low - begin : high - begin], alpha=mass / total)

    def _runs(self, begin: int, end: int) -> Iterator[tuple[int, int, bool]]:
        """Yield the elements from begin to end, group by group, and whether these are statistics."""
        for first, last, group in self.layout.ranges:
            low, high = max(first, begin), min(last, end)
            if low < high:
                yield low, high, group.statistics

    def _masses(self, used: Sequence[Contribution], end: int) -> Iterator[tuple[int, int, float]]:
        """Yield the elements that are still to be divided, up to `end`, with the sum of their weights.

        That is the same for all of them, unless a push broke off and the gradients that came in its place had
        other weights, as where the tokens that count are drawn at random. Statistics are left out; and where
        gradients are weighted by samples, everything is.
        """
        if used[0].weight is None:
            return
        cuts = {self._divided, end, *(cut for one in used for cut in (one.first, one.done))}
        inner = sorted(cut for cut in cuts if self._divided <= cut <= end)
        for begin, stop in pairwise(inner):
            mass = sum(one.mass for one in used if one.first <= begin and stop <= one.done)
            for low, high, is_statistics in self._runs(begin, stop):
                if not is_statistics:
                    yield low, high, mass

    def _divide(self, used: Sequence[Contribution], total: int, end: int) -> None:
        """Divide the sum by the weights, in elements up to `end`, for which all gradients have arrived."""
        for low, high, mass in self._masses(used, end):
            if mass not in (0, total):
                self._gradient[low:high].mul_(total / mass)
        self._divided = end

    def _squares(self, contribution: Contribution, begin: int, piece: torch.Tensor) -> float:
        """Return the squared norm of a contribution's elements from `begin` on, as they are pushed, (n,)."""
        return self._meter.squares(begin, piece)

    def _measure(self, used: Sequence[Contribution]) -> None:
        """Note the norms of the gradients that the next step is taken with, and of their mean."""
        norms = self._meter.norms(used, self._gradient)
        self.norms = StepNorms(self.version, norms) if norms else None

    def _merged(self, groups: tuple[Group, ...]) -> tuple[Group, ...]:
        """Return the groups with new options where they are given; raise as `set_options` does."""
        arguments = (groups, self._groups)
        if self._checked_groups[:2] != arguments:
            for group, change in zip(self._optimizer.param_groups, self._checked(groups), strict=True):
                if change.get("amsgrad", False) and not group["amsgrad"]:
                    # torch.optim keeps amsgrad's state from the first step on, and fails without it.
                    raise InvalidRequestError("amsgrad cannot be switched on once the job runs")
            merged = tuple(
                replace(old, options={**old.options, **new.options})
                for old, new in zip(self._groups, groups, strict=True)
            )
            self._checked_groups = (*arguments, merged)
        result: tuple[Group, ...] = self._checked_groups[2]
        return result

    def _settle_options(self, used: Sequence[Contribution]) -> None:
        """Take the step's options from the worker that sent the batch's first samples.

        Slices lie in the order in which their workers joined, at all shards alike: the first is that of the
        member that joined first. A newcomer whose schedule has started again does not affect the others.
        """
        first = next(iter(_with_options(used)), None)
        if first is None or first.groups is None or first.groups == self._groups:
            return
        self._groups = first.groups
        changes = self._translated(first.groups)
        for group, change in zip(self._optimizer.param_groups, changes, strict=True):
            group.update(change)

    def _note_differences(self, used: Sequence[Contribution]) -> None:
        """Note which workers' options differ from those of the step."""
        for other in (with_options := _with_options(used))[1:]:
            first = with_options[0]
            if other.groups != first.groups and (difference := _difference(first, other)):
                self._differences[other.worker] = f"iteration {self.version}: {difference}"

    def _note_options(self) -> None:
        """Note the options that hold before a partial step."""
        options = [
            {key: value for key, value in group.items() if key != "params"}
            for group in self._optimizer.param_groups
        ]
        self._options_before = self._groups, options

    def _restore_options(self) -> None:
        """Go back to the options that held before a partial step."""
        self._groups, options = self._options_before
        for group, before in zip(self._optimizer.param_groups, options, strict=True):
            group.update(before)

    def _arrived(self) -> int:
        """Return an element up to which the gradients of all samples have arrived."""
        ours = self._contributions
        if any(one.first for one in ours) or sum(one.count for one in ours) != self._total:
            return 0
        return min(one.done for one in ours)

    def _check_batch(self, part: Assignment) -> None:
        """Check that a slice lies in the batch that others have pushed for, which follows the last step's.

        Raises:
            InvalidRequestError: It does not, or its batch has another size or place.
        """
        if self._total not in (None, part.total):
            raise InvalidRequestError(f"total {part.total}, but others pushed for a batch of {self._total}")
        if part.batch_start is not None:
            batch = part.epoch, part.batch_start
            if self._batch not in (None, batch):
                raise InvalidRequestError(
                    f"a batch that begins at {batch[1]} of epoch {batch[0]}, but others pushed for one that "
                    f"begins at {self._batch[1]} of epoch {self._batch[0]}"
                )
            if self.place is not None and batch not in (self.place, (self.place[0] + 1, 0)):
                raise InvalidRequestError(
                    f"a batch that begins at {batch[1]} of epoch {batch[0]}, but the last has ended at "
                    f"{self.place[1]} of epoch {self.place[0]}"
                )
        begin = part.batch_start
        if begin is None and self._batch is not None:
            begin = self._batch[1]
        if begin is not None and not begin <= part.start <= part.end <= begin + part.total:
            raise InvalidRequestError(
                f"slice {part.start} to {part.end} is not within the batch, {begin} to {begin + part.total}"
            )

    def _first_missing_element(self, other: Contribution, part: Assignment, early: str) -> int:
        """Return the first element that is missing of the samples that a slice shares with a contribution.

        A contribution that is still being sent is interrupted: its connection is dead, or its worker was
        taken for dead, and may be silent for long in the middle of a push.

        Raises:
            RewoundError: The contribution broke off, and its elements were not certain to stay as they were.
            UnavailableError: Slices within this one have been pushed.
            InvalidRequestError: The two overlap, and neither contains the other.
        """
        start, end = part.start, part.end
        if other.start <= start and end <= other.end:
            self.interrupt(other)
            if other.early not in ("", early) and other.first < other.done < self.layout.elements:
                # It may have been given up since it changed: that cannot be taken out of the sum.
                raise RewoundError(
                    f"slice {start} to {end}: {other.worker!r} broke off a gradient that it was still "
                    f"computing; the iteration is to be done again",
                    part.attempt or 0,
                )
            return other.done
        if start <= other.start and other.end <= end:
            raise UnavailableError(
                f"slice {start} to {end}: others bring it in parts, such as {other.start} to {other.end}"
            )
        raise InvalidRequestError(f"slice {start} to {end} overlaps {other.start} to {other.end} of another")

    def _overlapping(self, part: Assignment) -> list[Contribution]:
        return [other for other in self._contributions if part.start < other.end and other.start < part.end]

    def _is_whole(self, contribution: Contribution) -> bool:
        return contribution.done == self.layout.elements

    def _sum_up(self, contributions: Sequence[Contribution], total: int) -> None:
        """Add held gradients to the sum in the order of their slices."""
        for contribution in sorted(contributions, key=lambda contribution: contribution.start):
            assert contribution.held is not None
            self._add_weighted(contribution, 0, contribution.held, total)

    def _next_batch(self, used: Sequence[Contribution]) -> None:
        """Begin the next batch; `used` are the contributions to the last step. Later pieces are dropped."""
        for contribution in self._contributions:
            contribution.open = False
            self._release(contribution)
        self.used = used
        self._contributions = []
        self._total = self._batch = None
        self._divided = 0

    def _release(self, contribution: Contribution) -> None:
        if contribution.held is not None:
            self._spare.append(contribution.held)
            contribution.held = None


class GradientSink:
    """A sink that adds a gradient to a shard piece by piece as it arrives; see `rpc.service.Sink`.

    Args:
        contribution: The gradient's place in the batch.
        dtype: Of the elements that arrive; they are added up in the shard's own, which None stands for.
    """

    def __init__(
        self, shard: Parameters, contribution: Contribution, dtype: torch.dtype | None = None
    ) -> None:
        dtype = dtype or shard.pushed_dtype
        self.shard = shard
        self._contribution = contribution
        self._itemsize = dtype.itemsize
        self._total_bytes = shard.layout.elements * dtype.itemsize
        # A partial step may be taken of it.
        quarter = self._total_bytes // 4 // self._itemsize * self._itemsize
        piece = max(self._itemsize, min(self._total_bytes, max(_LEAST_PIECE, quarter)))
        buffer = bytearray(min(_PIECE, piece))
        self._bytes = memoryview(buffer)
        self._piece = torch.frombuffer(buffer, dtype=dtype)
        self._filled = 0  # bytes of the piece
        self._received = 0  # bytes in all
        self._skip = contribution.first * self._itemsize  # bytes whose samples were counted already

    def get_buffer(self) -> memoryview:
        """Return the free part of the piece."""
        left = self._total_bytes - self._received
        return self._bytes[self._filled : self._filled + left]

    def advance(self, count: int) -> None:
        """Add the piece to the shard once it is full."""
        self._filled += count
        self._received += count
        if self._filled == len(self._bytes) or self._received == self._total_bytes:
            first = self._received - self._filled
            fresh = max(0, self._skip - first) // self._itemsize
            piece = self._piece[fresh : self._filled // self._itemsize]
            if len(piece):
                self.shard.add(self._contribution, piece.to(self.shard.pushed_dtype))
            self._filled = 0

    @property
    def is_finite(self) -> bool:
        """Return whether no element of the gradient is known to be a NaN or an infinity."""
        return self._contribution.is_finite

    def close(self) -> None:
        """Mark the contribution as complete."""
        self._contribution.open = False

    def abort(self) -> None:
        """Interrupt the contribution, since its connection broke."""
        self.shard.interrupt(self._contribution)


def _with_options(used: Sequence[Contribution]) -> list[Contribution]:
    """Return the contributions that say what options their step is to be taken with, in their order."""
    return sorted((one for one in used if one.groups), key=lambda one: (one.start, one.first))


def _difference(first: Contribution, other: Contribution) -> str | None:
    """Return the first option in which two workers differ by more than rounding, in words, or None."""
    pairs = zip(first.groups or (), other.groups or (), strict=True)
    for number, (theirs, own) in enumerate(pairs):
        for name in sorted({*theirs.options, *own.options}):
            value, expected = own.options.get(name), theirs.options.get(name)
            if (
                value is None
                or expected is None
                or not math.isclose(value, expected, rel_tol=_OPTION_TOLERANCE)
            ):
                place = number if own.number is None else own.number
                return (
                    f"{name} of parameter group {place} is {value} at {other.worker!r}, but {expected} at "
                    f"{first.worker!r}, whose options the step was taken with: all workers' loops must set "
                    f"the same. One that joins late begins its schedule at session.assignment.iteration"
                )
    return None
