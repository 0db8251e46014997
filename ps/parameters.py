"""The parameters of one job that one server process holds, and the optimiser that steps them.

When a step is taken, and with which gradients, is for the kinds of shard that build on it: `shard` for
BSP, `backup` and `asynchronous`.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from idl.errors import InvalidRequestError
from idl.layout import Group, Layout
from idl.plan import Assignment
from ps import state as optimizer_state
from ps.optimizers import DTYPES, check_optimizer, make_optimizer, translate
from ps.state import Snapshot, State


@dataclass
class Contribution:
    """One worker's gradient for one slice, on its way into a step.

    Attributes:
        start: First position of the slice in its epoch.
        count: Samples, at least 1; the weight of the gradient.
        worker: Who brings it.
        first: The first element that is taken from it; for those before, its samples count already.
        done: The element up to which it has arrived.
        open: Whether a connection is bringing it right now; what still comes otherwise is dropped.
        groups: With the options that the step is to be taken with, as its worker says; None if it does not.
        held: The gradient itself, where it is not added to a sum at once.
    """

    start: int
    count: int
    worker: str = ""
    first: int = 0
    done: int = 0
    open: bool = True
    groups: tuple[Group, ...] | None = None
    held: torch.Tensor | None = field(default=None, repr=False)

    @property
    def end(self) -> int:
        """The position after the slice."""
        return self.start + self.count


class Parameters(ABC):
    """Flat parameters with an optimiser of torch.optim on them, and what every kind of shard does.

    Args:
        layout: What the shard holds.

    Attributes:
        version: Steps done so far, or iterations.
        initialised: Whether there are parameters yet.
        steps: That the optimiser has taken.
        used: What the last step was taken with.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.version = 0
        self.initialised = False
        self.steps = 0
        self.used: Sequence[Contribution] = ()
        self._groups = layout.groups  # with the options that hold by now
        self._dtype = DTYPES[layout.dtype]
        self._parameters = torch.empty(0, dtype=self._dtype)  # (elements,)
        self._gradient = torch.empty(0, dtype=self._dtype)  # (elements,), which the optimiser steps with
        self._spare: list[torch.Tensor] = []  # (elements,) each: fresh memory is several times as slow
        self._slots: dict[str, torch.Tensor] = {}  # (elements,) each, as somebody asked for since the step

    def initialise(self, parameters: torch.Tensor, version: int, state: State | None = None) -> bool:
        """Set the first parameters; False, and no change, if they are set already.

        Args:
            parameters: (elements,), taken over without a copy.
            version: Of these parameters.
            state: The optimiser's to go on from, likewise.

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

    def forget(self) -> None:
        """Have no parameters any more, until they are set again."""
        self.drop()
        self.initialised = False

    def snapshot(self) -> Snapshot:
        """All that the next steps depend on, but for what has come for them; the same until the next step."""
        return Snapshot(
            replace(self.layout, groups=self._groups),
            self.version,
            self.steps,
            self._parameters,
            optimizer_state.whole(self._optimizer),
        )

    def restore(self, snapshot: Snapshot) -> None:
        """Go on from a snapshot, whose tensors are taken over, and forget what has come."""
        self.layout = snapshot.layout
        self._groups = snapshot.layout.groups
        self._parameters = snapshot.parameters
        self._gradient = torch.zeros_like(snapshot.parameters)
        self._make_optimizer(State())
        optimizer_state.put_back(self._optimizer, snapshot.state)
        self._slots.clear()
        self.version, self.steps, self.initialised = snapshot.version, snapshot.steps, True
        self.drop()

    def parameters(self) -> memoryview:
        """The parameters' bytes, as they are now; valid until the next step."""
        return self._parameters.numpy().data.cast("B")

    def check_slot(self, slot: str) -> None:
        """See that the optimiser can go on from such a slot.

        Raises:
            InvalidRequestError: It has none of this name.
        """
        name = self.layout.optimizer
        known = set().union(*(optimizer_state.slot_names(name, o) for o in self.layout.options))
        if slot not in known:
            raise InvalidRequestError(
                f"slot {slot!r}: {name} with these options has {', '.join(sorted(known)) or 'none'}"
            )

    def slots(self) -> list[str]:
        """The slots of the optimiser's state that there are by now.

        Raises:
            InvalidRequestError: There are no parameters yet.
        """
        if not self.initialised:
            raise InvalidRequestError("there is no state before the parameters are initialised")
        return optimizer_state.present(self._optimizer)

    def slot(self, name: str) -> memoryview:
        """A slot's bytes as they are now, with 0 for statistics; they stay as they are.

        Raises:
            InvalidRequestError: There is no such slot by now.
        """
        there = self.slots()
        if name not in there:
            raise InvalidRequestError(f"slot {name!r}: by now there are {', '.join(there) or 'none'}")
        if name not in self._slots:
            flat = self._slots[name] = torch.zeros_like(self._parameters)
            optimizer_state.read(self._optimizer, name, self._parts(flat))
        return self._slots[name].numpy().data.cast("B")

    def detach_parameters(self) -> None:
        """Go on with a copy: somebody is still reading the memory that `parameters` gave."""
        self._parameters = self._parameters.clone()
        for group, part in zip(self._optimizer.param_groups, self._parts(self._parameters), strict=True):
            group["params"][0].data = part

    @abstractmethod
    def set_options(self, contribution: Contribution, groups: Sequence[Group]) -> None:
        """Note the options that a contribution's step is to be taken with, as a learning-rate schedule says.

        Args:
            contribution: Of the worker that says so.
            groups: The layout's; an option that is left out stays as it is.

        Raises:
            InvalidRequestError: The groups are not the layout's, or an option is not allowed.
        """

    @abstractmethod
    def check_options(self, worker: str) -> None:
        """See that a worker's options were those that its gradients' steps were taken with.

        Raises:
            InvalidRequestError: They were not.
        """

    @abstractmethod
    def opened(self, worker: str, groups: Sequence[Group]) -> None:
        """A worker starts with these options, which may not be the layout's."""

    @abstractmethod
    def has_used(self, part: Assignment, worker: str = "") -> bool:
        """Whether a slice's gradient is not needed any more, so that a push of it is taken and dropped."""

    @abstractmethod
    def begin(self, part: Assignment, worker: str = "") -> Contribution:
        """A worker starts to push its slice's gradient, or sends it again as its connection broke.

        Args:
            part: The slice.
            worker: Who brings it.

        Raises:
            InvalidRequestError: It cannot be taken now.
            NotMemberError: The slice's worker was taken out.
            UnavailableError: Another connection is bringing the slice, or parts of it.
        """

    @abstractmethod
    def add(self, contribution: Contribution, piece: torch.Tensor) -> None:
        """Take the gradient's next elements, (n,)."""

    @abstractmethod
    def broken(self, contribution: Contribution) -> None:
        """The connection that brought a contribution broke before its end."""

    @abstractmethod
    def forfeit(self, iteration: int, start: int, count: int, total: int) -> None:
        """A slice's worker has gone: do not wait for what has not come; the same may be said again."""

    @abstractmethod
    def drop(self) -> None:
        """Forget all that has come since the last step."""

    @property
    def contributors(self) -> AbstractSet[str]:
        """Whose gradients the next step is taken with; for bsp alone."""
        return frozenset()

    @property
    @abstractmethod
    def complete(self) -> bool:
        """Whether it is time for a step."""

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
        optimizer_state.load(self._optimizer, name, options, state.steps, slots)
        self.steps = state.steps

    def _apply(self) -> None:
        """Let the optimiser step with `_gradient`, and the statistics take their values from there."""
        begin = 0
        for group in self.layout.groups:
            end = begin + group.elements
            if group.statistics:
                self._parameters[begin:end] = self._gradient[begin:end]
            begin = end
        self._optimizer.step()
        self._slots.clear()
        self.steps += 1

    def _parts(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Views of a flat tensor, one for each parameter group that the optimiser steps."""
        parts = torch.split(flat, [group.elements for group in self.layout.groups])
        return [part for part, group in zip(parts, self.layout.groups, strict=True) if not group.statistics]

    def _buffer(self) -> torch.Tensor:
        """Memory to hold a gradient in, (elements,)."""
        return self._spare.pop() if self._spare else torch.empty_like(self._parameters)

    def _checked(self, groups: Sequence[Group]) -> list[dict[str, Any]]:
        """Like `_translated`, but refuses groups that are not the layout's and options that torch refuses."""
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
        """In torch.optim's terms, the options of each group that it steps."""
        return [translate(self.layout.optimizer, group.options) for group in groups if not group.statistics]
