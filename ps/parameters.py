"""The parameters of one job that one server process holds, and the optimiser that steps them.

When a step is taken, and with which gradients, is for the kinds of shard that build on it: `shard` for
BSP, `backup` and `asynchronous`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ps.optimizers import make_optimizer, translate
from rpc.errors import InvalidRequestError

DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class Group:
    """A run of the shard's elements that share the optimiser's options."""

    elements: int
    options: Mapping[str, float]


@dataclass(frozen=True)
class Layout:
    """What a shard holds; the same for every worker of the job.

    Attributes:
        dtype: A name in `DTYPES`.
        optimizer: A name in `ps.optimizers.OPTIMIZERS`.
        groups: The parameter groups, in the order of their elements.

    Raises:
        InvalidRequestError: A value is not allowed.
    """

    dtype: str
    optimizer: str
    groups: tuple[Group, ...]

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise InvalidRequestError(f"dtype {self.dtype!r}: there are {', '.join(DTYPES)}")
        if not self.elements or any(group.elements < 0 for group in self.groups):
            raise InvalidRequestError("groups: they must hold at least one element together")
        # Building an optimiser on nothing checks its name and options.
        make_optimizer(
            self.optimizer, [torch.zeros(1) for _ in self.groups], [g.options for g in self.groups]
        )

    @property
    def elements(self) -> int:
        """How many numbers the shard holds."""
        return sum(group.elements for group in self.groups)

    @property
    def nbytes(self) -> int:
        """How many bytes the shard's parameters take."""
        return self.elements * DTYPES[self.dtype].itemsize


@dataclass
class Contribution:
    """One worker's gradient for one slice, on its way into a step.

    Attributes:
        start: First position of the slice in its epoch.
        count: Samples, at least 1; the weight of the gradient.
        done: Elements that have arrived.
        open: Whether a connection is bringing it right now.
        lost: Whether its worker has gone, so that no more of it will come.
        held: The gradient itself, where it is not added to a sum at once.
    """

    start: int
    count: int
    done: int = 0
    open: bool = False
    lost: bool = False
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
        version: Steps done so far.
        initialised: Whether there are parameters yet.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.version = 0
        self.initialised = False
        self._dtype = DTYPES[layout.dtype]
        self._parameters = torch.empty(0, dtype=self._dtype)  # (elements,)
        self._gradient = torch.empty(0, dtype=self._dtype)  # (elements,), which the optimiser steps with
        self._spare: list[torch.Tensor] = []  # (elements,) each: fresh memory is several times as slow

    def initialise(self, parameters: torch.Tensor, version: int) -> bool:
        """Set the first parameters; False, and no change, if they are set already.

        Args:
            parameters: (elements,), taken over without a copy.
            version: Of these parameters.
        """
        if self.initialised:
            return False
        self._parameters = parameters
        self._gradient = torch.zeros_like(parameters)
        self._make_optimizer()
        self.version = version
        self.initialised = True
        return True

    def parameters(self) -> memoryview:
        """The parameters' bytes, as they are now; valid until the next step."""
        return self._parameters.numpy().data.cast("B")

    def detach_parameters(self) -> None:
        """Go on with a copy: somebody is still reading the memory that `parameters` gave."""
        self._parameters = self._parameters.clone()
        for group, part in zip(self._optimizer.param_groups, self._parts(self._parameters), strict=True):
            group["params"][0].data = part

    def set_options(self, groups: Sequence[Group], worker: str = "") -> None:
        """Change the optimiser's options, as a learning-rate schedule does.

        Args:
            groups: The layout's, with new options.
            worker: Who says so; it matters where each worker's gradient is a step of its own.

        Raises:
            InvalidRequestError: The groups are not the layout's, or an option is not allowed.
        """
        changes = self._checked(groups)
        for group, change in zip(self._optimizer.param_groups, changes, strict=True):
            if change.get("amsgrad", False) and not group["amsgrad"]:
                # torch.optim keeps amsgrad's state from the first step on, and fails in the next without it.
                raise InvalidRequestError("amsgrad cannot be switched on once the job runs")
        for group, change in zip(self._optimizer.param_groups, changes, strict=True):
            group.update(change)

    @abstractmethod
    def opened(self, worker: str, groups: Sequence[Group]) -> None:
        """A worker starts with these options, which may not be the layout's."""

    @abstractmethod
    def has_used(self, iteration: int, start: int, count: int, worker: str = "") -> bool:
        """Whether a slice's gradient is not needed any more, so that a push of it is taken and dropped."""

    @abstractmethod
    def begin(self, iteration: int, start: int, count: int, total: int, worker: str = "") -> Contribution:
        """A worker starts to push its slice's gradient, or sends it again as its connection broke.

        Raises:
            InvalidRequestError: It cannot be taken now.
            NotMemberError: The slice's worker was taken out.
            UnavailableError: Another connection is bringing the slice.
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

    @property
    @abstractmethod
    def complete(self) -> bool:
        """Whether it is time for a step."""

    @abstractmethod
    def step(self) -> None:
        """Take a step of the optimiser."""

    def _make_optimizer(self) -> None:
        parts = self._parts(self._parameters)
        for part, gradient in zip(parts, self._parts(self._gradient), strict=True):
            part.grad = gradient
        options = [group.options for group in self.layout.groups]
        self._optimizer = make_optimizer(self.layout.optimizer, parts, options)

    def _parts(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Views of a flat tensor, one for each parameter group."""
        return list(torch.split(flat, [group.elements for group in self.layout.groups]))

    def _buffer(self) -> torch.Tensor:
        """Memory to hold a gradient in, (elements,)."""
        return self._spare.pop() if self._spare else torch.empty_like(self._parameters)

    def _checked(self, groups: Sequence[Group]) -> list[dict[str, Any]]:
        """Like `_translated`, but refuses groups that are not the layout's and options that torch refuses."""
        if [g.elements for g in groups] != [g.elements for g in self.layout.groups]:
            raise InvalidRequestError(
                f"groups of {[g.elements for g in groups]} elements, "
                f"but the job has {[g.elements for g in self.layout.groups]}"
            )
        Layout(self.layout.dtype, self.layout.optimizer, tuple(groups))  # raises if torch would
        return self._translated(groups)

    def _translated(self, groups: Sequence[Group]) -> list[dict[str, Any]]:
        """Each group's options in torch.optim's terms."""
        return [translate(self.layout.optimizer, group.options) for group in groups]
