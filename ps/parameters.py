"""The parameters of one job that one server process holds, and the optimiser that steps them.

The kinds of shard that build on it decide when a step is taken, and with which gradients: `shard` for BSP,
`exact_shard`, `backup_shard` and `asynchronous_shard`.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from idl.errors import InvalidRequestError
from idl.gradient_norms import StepNorms
from idl.layout import Group, Layout
from idl.plan import Assignment
from ps import optimizer_state
from ps.optimizer_state import ShardSnapshot, State
from ps.optimizers import DTYPES, check_optimizer, make_optimizer, translate
from ps.partial_step import PartialStep


@dataclass
class Contribution:
    """One worker's gradient for one slice, as far as it has arrived for a step.

    Attributes:
        early: The incarnation that alone may go on with it if it breaks off, since it has sent elements which
            may have changed; empty if anyone may.
        groups: The groups with the options that the worker wants the step to be taken with; None if it says
            nothing of them.
    """

    start: int  # first position of the slice in its epoch
    count: int  # samples, at least 1
    worker: str = ""  # the worker that sends it
    first: int = 0  # the first element that is used; for those before it, the samples were counted already
    done: int = 0  # the element up to which it has arrived
    open: bool = True  # whether a connection is sending it at present; if not, further elements are dropped
    early: str = ""
    groups: tuple[Group, ...] | None = None
    # The gradient itself, where it is not added to a sum at once.
    held: torch.Tensor | None = field(default=None, repr=False)
    squares: float = 0.0  # squared norm of the elements that have arrived, statistics left out
    is_finite: bool = True  # whether none of these is known to be a NaN or an infinity
    weight: float | None = None  # what the gradient is a mean over; None for the samples

    @property
    def mass(self) -> float:
        """Return what the gradient is weighted by; statistics are by samples."""
        return self.count if self.weight is None else self.weight

    @property
    def end(self) -> int:
        """Return the position after the slice."""
        return self.start + self.count


class Parameters(ABC):
    """Flat parameters with an optimiser of torch.optim on them: the base of every kind of shard.

    Args:
        layout: Layout of the shard's part of the parameters.

    Attributes:
        place: Epoch and position at which the batch of the last step has ended, so that the next one begins
            there; None if it is not known.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        # Of the elements that workers push, unless they say otherwise, and that are added up.
        self.pushed_dtype = DTYPES[layout.dtype]
        self.version = 0  # steps of the job so far
        self.initialised = False  # whether the parameters have been set
        self.steps = 0  # steps that the optimiser has taken
        self.used: Sequence[Contribution] = ()  # the contributions that the last step was taken with
        self.place: tuple[int, int] | None = None
        # Norms of the last step's gradients; None where they could not be had.
        self.norms: StepNorms | None = None
        self.partial_steps = False  # whether `step_in_part` takes steps, once the optimiser has its state
        # The next step, as far as it has been taken; None before the parameters are set.
        self.partial_step: PartialStep | None = None
        self._groups = layout.groups  # with the options that hold now
        self._dtype = DTYPES[layout.dtype]
        self._parameters = torch.empty(0, dtype=self._dtype)  # (elements,)
        self._gradient = torch.empty(0, dtype=self._dtype)  # (elements,), that the optimiser steps with
        self._spare: list[torch.Tensor] = []  # (elements,) each: new memory is several times as slow
        self._slots: dict[str, torch.Tensor] = {}  # (elements,) each, copied for pulls since the step

    def initialise(self, parameters: torch.Tensor, version: int, state: State | None = None) -> bool:
        """Set the first parameters; return False, and change nothing, if they are set already.

        Args:
            parameters: (elements,), not copied.
            state: The state that the optimiser continues from, not copied.

        Raises:
            InvalidRequestError: The optimiser has no such slot.
        """
        if self.initialised:
            return False
        self._parameters = parameters
        self._gradient = torch.zeros_like(parameters)
        self._make_optimizer(state or State())
        self.version = version
        self.initialised = True
        return True

    def reset(self) -> None:
        """Drop the parameters, until they are set again."""
        self.drop()
        self.initialised, self.place, self.norms = False, None, None

    def snapshot(self) -> ShardSnapshot:
        """Return all that the next steps depend on except their gradients; valid until the next step."""
        return ShardSnapshot(
            replace(self.layout, groups=self._groups),
            self.version,
            self.steps,
            self._parameters,
            optimizer_state.full_state(self._optimizer),
        )

    def restore(self, snapshot: ShardSnapshot) -> None:
        """Continue from a snapshot, whose tensors are not copied, and drop gradients that have arrived."""
        self.layout = snapshot.layout
        self._groups = snapshot.layout.groups
        self._parameters = snapshot.parameters
        self._gradient = torch.zeros_like(snapshot.parameters)
        self._make_optimizer(State())
        optimizer_state.restore_state(self._optimizer, snapshot.state)
        self._slots.clear()
        self.norms = None
        self.version, self.steps, self.initialised = snapshot.version, snapshot.steps, True
        self.drop()

    @property
    def lack(self) -> str:
        """What the next step waits for, in words."""
        return "gradients are awaited" if self.initialised else "no worker has set the first parameters"

    @property
    def nbytes(self) -> int:
        """Return the bytes of all that the job has here once it trains, apart from gradients that are held.

        They are of the parameters, the sum of the gradients and the optimiser's state; with partial steps, of
        the next parameters and the next state as well.
        """
        name, groups = self.layout.optimizer, self.layout.groups
        slots = sum(
            len(optimizer_state.slot_names(name, g.options)) * g.elements for g in groups if not g.statistics
        )
        version = self.layout.elements + slots
        return self._dtype.itemsize * (self.layout.elements + version * (1 + self.partial_steps))

    def parameters(self) -> memoryview:
        """Return the parameters' bytes; valid until the next step."""
        return self._parameters.numpy().data.cast("B")

    @property
    def has_partial_step(self) -> bool:
        """Return whether a part of the next step has been taken; see `step_in_part`."""
        return self.partial_step is not None and self.partial_step.end > 0

    def next_parameters(self) -> memoryview:
        """Return the bytes of the next version's parameters, as far as `step_in_part` has taken the step.

        They are valid for longer than `parameters`: until the second step from now begins.
        """
        assert self.partial_step is not None
        return self.partial_step.parameters[: self.partial_step.end].numpy().data.cast("B")

    def check_slot(self, slot: str) -> None:
        """Check that the optimiser has a slot of this name with the layout's options.

        Raises:
            InvalidRequestError: It has no such slot.
        """
        name = self.layout.optimizer
        known = set().union(*(optimizer_state.slot_names(name, o) for o in self.layout.options))
        if slot not in known:
            raise InvalidRequestError(
                f"slot {slot!r}: {name} with these options has {', '.join(sorted(known)) or 'none'}"
            )

    def slots(self) -> list[str]:
        """Return the names of the slots that the optimiser's state has at present.

        Raises:
            InvalidRequestError: The parameters have not been set yet.
        """
        if not self.initialised:
            raise InvalidRequestError("there is no state before the parameters are initialised")
        return optimizer_state.present_slots(self._optimizer)

    def slot(self, name: str) -> memoryview:
        """Return the bytes of a copy of a slot, with 0 for statistics.

        Raises:
            InvalidRequestError: The optimiser's state has no such slot at present.
        """
        present = self.slots()
        if name not in present:
            raise InvalidRequestError(f"slot {name!r}: by now there are {', '.join(present) or 'none'}")
        if name not in self._slots:
            flat = torch.zeros_like(self._parameters)
            optimizer_state.read_slot(self._optimizer, name, self._parts(flat))
            self._slots[name] = flat
        return self._slots[name].numpy().data.cast("B")

    def detach_parameters(self) -> None:
        """Continue in other memory, since that which `parameters` have returned is still being read.

        So is, perhaps, that of `next_parameters`, which was the parameters' before.
        """
        if self.partial_step is not None:
            self.partial_step.leave_memory()
        self._parameters = self._parameters.clone()
        for group, part in zip(self._optimizer.param_groups, self._parts(self._parameters), strict=True):
            group["params"][0].data = part

    @abstractmethod
    def set_options(self, contribution: Contribution, groups: Sequence[Group]) -> None:
        """Set the options that a contribution's step is to be taken with, as after a learning-rate schedule.

        Args:
            contribution: The contribution of the worker that sets them.
            groups: The layout's groups; an option that is left out keeps its value.

        Raises:
            InvalidRequestError: The groups are not the layout's, or an option is not allowed.
        """

    @abstractmethod
    def check_options(self, worker: str) -> None:
        """Check that the steps with a worker's gradients were taken with that worker's options.

        Raises:
            InvalidRequestError: One was taken with other options.
        """

    @abstractmethod
    def start_worker(self, worker: str, groups: Sequence[Group]) -> None:
        """Note the options that a worker starts with, which may differ from the layout's."""

    @abstractmethod
    def has_used(self, part: Assignment, worker: str = "") -> bool:
        """Return whether a slice's gradient is not needed any more, so that a push of it is dropped."""

    @abstractmethod
    def begin(
        self, part: Assignment, worker: str = "", early: str = "", weight: float | None = None
    ) -> Contribution:
        """Begin a push of a slice's gradient, or begin it again after its connection broke.

        Args:
            part: The slice.
            worker: The worker that sends it.
            early: The worker's incarnation, if the gradient may still change while it is sent.
            weight: What the gradient is a mean over, at least 0; None for the samples.

        Raises:
            InvalidRequestError: The slice does not belong to the step that is being prepared; or the step's
                other gradients are weighted by samples and this one is not, or the reverse.
            NotMemberError: The slice's worker was removed from the job.
            RewoundError: Another has broken off a gradient of these samples that may have changed since.
            UnavailableError: Another connection is sending the slice, or parts of it.
        """

    @abstractmethod
    def add(self, contribution: Contribution, piece: torch.Tensor) -> None:
        """Add the gradient's next elements, (n,)."""

    @abstractmethod
    def interrupt(self, contribution: Contribution) -> None:
        """Handle that the connection which sent a contribution broke before its end."""

    @abstractmethod
    def forfeit(self, iteration: int, start: int, count: int, total: int) -> None:
        """Stop waiting for a slice whose worker has left the job; may be called again for the same slice.

        Args:
            iteration: The slice's iteration.
            start: First position of the slice in its epoch.
            count: Samples of the slice.
            total: Samples of the whole batch.
        """

    @abstractmethod
    def drop(self) -> None:
        """Drop all gradients that have arrived since the last step."""

    @property
    def contributors(self) -> AbstractSet[str]:
        """Return the workers whose gradients the next step uses, as far as the mode is bsp."""
        return frozenset()

    @property
    @abstractmethod
    def is_complete(self) -> bool:
        """Return whether all that a step needs has arrived."""

    @property
    def next_place(self) -> tuple[int, int] | None:
        """Return the `place` after a step with the present batch; None if it is not known."""
        return None

    def step_in_part(self) -> int:
        """Take the next step for the elements for which all that it needs has arrived; see `partial_step`.

        The parameters, and all that a snapshot has, stay as they are until `step`.

        Returns:
            The element up to which it is taken.
        """
        return 0

    @abstractmethod
    def step(self) -> None:
        """Take a step of the optimiser."""

    def _make_optimizer(self, state: State) -> None:
        name, options = self.layout.optimizer, self.layout.options
        for slot in state.slots:
            self.check_slot(slot)
        parts = self._parts(self._parameters)
        for part, gradient in zip(parts, self._parts(self._gradient), strict=True):
            part.grad = gradient
        self._optimizer = make_optimizer(name, parts, options)
        slots = {slot: self._parts(flat) for slot, flat in state.slots.items()}
        optimizer_state.load_state(self._optimizer, name, options, state.steps, slots)
        self.partial_step = PartialStep(self.layout, self._optimizer) if self.partial_steps else None
        self.steps = state.steps

    def _apply(self) -> None:
        """Step the optimiser with `_gradient`, and copy the statistics from there."""
        if self.partial_step is not None and self.partial_step.end:
            self.partial_step.advance(self._parameters, self._gradient, self.layout.elements)
            self._parameters = self.partial_step.commit(self._parameters)
        else:
            for begin, end, group in self.layout.ranges:
                if group.statistics:
                    self._parameters[begin:end] = self._gradient[begin:end]
            self._optimizer.step()
        self._slots.clear()
        self.steps += 1

    def _parts(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Return views of a flat tensor, one for each parameter group that the optimiser steps."""
        parts = torch.split(flat, [group.elements for group in self.layout.groups])
        return [part for part, group in zip(parts, self.layout.groups, strict=True) if not group.statistics]

    def _buffer(self) -> torch.Tensor:
        """Return memory for a gradient, (elements,), with any values."""
        return self._spare.pop() if self._spare else torch.empty_like(self._parameters)

    def _checked(self, groups: Sequence[Group]) -> list[dict[str, Any]]:
        """Return `_translated(groups)` after a check of the groups' sizes and options.

        Raises:
            InvalidRequestError: The groups are not the layout's, or torch.optim refuses an option.
        """
        if any(a.statistics != b.statistics for a, b in zip(groups, self.layout.groups, strict=False)):
            raise InvalidRequestError("groups: which of them are of statistics may not change")
        if [g.elements for g in groups] != [g.elements for g in self.layout.groups]:
            raise InvalidRequestError(
                f"groups of {[g.elements for g in groups]} elements, "
                f"but the job has {[g.elements for g in self.layout.groups]}"
            )
        check_optimizer(replace(self.layout, groups=tuple(groups)))
        return self._translated(groups)

    def _translated(self, groups: Sequence[Group]) -> list[dict[str, Any]]:
        """Return the options, by torch.optim's names, of each group that the optimiser steps."""
        return [translate(self.layout.optimizer, group.options) for group in groups if not group.statistics]
