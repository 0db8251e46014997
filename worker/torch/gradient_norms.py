"""PyTorch: squared norms of gradients, where a backward pass or a reduction has just made them.

With a preconditioner's diagonal they are those of the gradients multiplied by it.
"""

from collections.abc import Iterable, Sequence
from functools import partial

import torch

_PIECE = 2**16  # elements: sums of float32 over millions of them are too small by a thousandth on CPUs


def squared_norm(gradient: torch.Tensor, diagonal: torch.Tensor | None = None) -> torch.Tensor | float:
    """Return the squared norm of a dense tensor; off the CPU as a tensor, which nothing waits for.

    Args:
        gradient: The tensor.
        diagonal: A preconditioner of the same shape; None for none.
    """
    flat = gradient.reshape(-1)  # a step for each tensor costs more than the sum itself
    if flat.requires_grad:
        flat = flat.detach()
    if flat.dtype in (torch.float16, torch.bfloat16):
        flat = flat.float()
    if not flat.is_cpu:
        return _dot(flat, diagonal)
    if len(flat) <= _PIECE:
        return float(_dot(flat, diagonal))
    if diagonal is None:
        return sum((float(_dot(piece)) for piece in torch.split(flat, _PIECE)), 0.0)
    pieces = zip(torch.split(flat, _PIECE), torch.split(diagonal.reshape(-1), _PIECE), strict=True)
    return sum((float(_dot(piece, own)) for piece, own in pieces), 0.0)


def _dot(flat: torch.Tensor, diagonal: torch.Tensor | None = None) -> torch.Tensor:
    if diagonal is not None:
        flat = flat * diagonal.reshape(-1)
    return torch.dot(flat, flat)


def squared_norm_of(
    gradients: Iterable[torch.Tensor | None], diagonals: Iterable[torch.Tensor | None]
) -> torch.Tensor | float:
    """Return the squared norm of several tensors together; None is one of zeros, and so is a sparse one.

    Args:
        gradients: The tensors.
        diagonals: For each its preconditioner, likewise; None for none.
    """
    total: torch.Tensor | float = 0.0
    for gradient, diagonal in zip(gradients, diagonals, strict=True):
        if gradient is not None and gradient.layout is torch.strided:
            total = total + squared_norm(gradient, diagonal)
    return total


class PassNorms:
    """The squared norm of what one backward pass adds to the parameters' `grad`, which sums many passes.

    Args:
        parameters: The parameters that are trained.
    """

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        self._squares: torch.Tensor | float | None = None  # None outside of a pass that is measured
        self._diagonals: Sequence[torch.Tensor | None] = ()
        for number, parameter in enumerate(parameters):
            parameter.register_hook(partial(self.add, number))  # type: ignore[no-untyped-call]

    def begin(self, diagonals: Sequence[torch.Tensor | None]) -> None:
        """Measure the passes from now on, with a preconditioner for each parameter, or None."""
        self._squares, self._diagonals = 0.0, diagonals

    def take(self) -> torch.Tensor | float:
        """Return the squared norm of what was added since `begin`, and measure no further."""
        squares, self._squares = self._squares, None
        return 0.0 if squares is None else squares

    def add(self, number: int, gradient: torch.Tensor) -> None:
        """Add what a pass adds to the parameter of this number; called by its hook."""
        if self._squares is not None and gradient.layout is torch.strided:
            self._squares = self._squares + squared_norm(gradient, self._diagonals[number])
