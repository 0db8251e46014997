"""PyTorch: squared norms of gradients, where a backward pass or a reduction has just made them.

With a preconditioner's diagonal they are those of the gradients multiplied by it.
"""

from collections.abc import Iterable, Sequence
from functools import partial

import torch
from torch.utils.hooks import RemovableHandle

_PIECE = 2**16  # elements: sums of float32 over millions of them are too small by a thousandth on CPUs
_HALF = (torch.float16, torch.bfloat16)


def squared_norm(gradient: torch.Tensor, diagonal: torch.Tensor | None = None) -> torch.Tensor | float:
    """Return the squared norm of a dense tensor; off the CPU as a tensor, which nothing waits for.

    Args:
        diagonal: A preconditioner, (elements,); None for none.
    """
    flat = gradient.reshape(-1)  # a step for each tensor costs more than the sum itself
    if flat.requires_grad:
        flat = flat.detach()
    if flat.dtype in _HALF:
        flat = flat.float()
    if len(flat) <= _PIECE or not flat.is_cpu:
        if diagonal is not None:
            flat = flat * diagonal
        squares = torch.dot(flat, flat)
        return float(squares) if flat.is_cpu else squares
    total, pieces = 0.0, torch.split(flat, _PIECE)
    diagonals = torch.split(diagonal, _PIECE) if diagonal is not None else None
    for number, plain in enumerate(pieces):
        piece = plain if diagonals is None else plain * diagonals[number]
        total += float(torch.dot(piece, piece))
    return total


def squared_norm_of(
    gradients: Iterable[torch.Tensor | None], diagonals: Iterable[torch.Tensor | None]
) -> torch.Tensor | float:
    """Return the squared norm of several tensors together; None is one of zeros, and so is a sparse one.

    Args:
        diagonals: For each its preconditioner, likewise; None for none.
    """
    norms = [
        (gradient, diagonal)
        for gradient, diagonal in zip(gradients, diagonals, strict=True)
        if gradient is not None and gradient.layout is torch.strided
    ]
    if norms and not norms[0][0].is_cpu:
        return _together(norms)
    return sum((float(squared_norm(gradient, diagonal)) for gradient, diagonal in norms), 0.0)


class PassNorms:
    """The squared norm of what one backward pass adds to the parameters' `grad`, which sums many passes.

    Off the CPU the pass's gradients are kept until its end, and their norm is taken by a few kernels.
    """

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        self._squares: float | None = None  # None outside of a pass that is measured
        self._diagonals: Sequence[torch.Tensor | None] = ()
        self._kept: list[tuple[torch.Tensor, torch.Tensor | None]] = []  # gradients, with their diagonals
        self._parameters = parameters
        self._hooks: list[RemovableHandle] = []

    def begin(self, diagonals: Sequence[torch.Tensor | None]) -> None:
        """Measure the passes from now on, with a preconditioner for each parameter, or None."""
        self._squares, self._diagonals, self._kept = 0.0, diagonals, []
        for number, parameter in enumerate(self._parameters) if not self._hooks else ():
            self._hooks.append(parameter.register_hook(partial(self.add, number)))

    def take(self) -> torch.Tensor | float:
        """Return the squared norm of what was added since `begin`, and measure no further."""
        squares, self._squares = self._squares, None
        kept, self._kept = self._kept, []
        while kept and self._hooks:  # an idle hook costs a GPU's host time in every pass
            self._hooks.pop().remove()
        return (squares or 0.0) + (_together(kept) if kept else 0.0)

    def add(self, number: int, gradient: torch.Tensor) -> None:
        """Add what a pass adds to the parameter of this number; called by its hook."""
        if self._squares is None or gradient.layout is not torch.strided:
            return
        if gradient.is_cpu:
            self._squares += float(squared_norm(gradient, self._diagonals[number]))
        else:
            self._kept.append((gradient, self._diagonals[number]))


@torch.no_grad()
def _together(gradients: Sequence[tuple[torch.Tensor, torch.Tensor | None]]) -> torch.Tensor:
    """Return the squared norm of dense tensors off the CPU, each with its preconditioner, or None.

    Launching kernels for each tensor takes a GPU longer than the sums themselves.
    """
    plain = [gradient for gradient, diagonal in gradients if diagonal is None]
    scaled = [(gradient.reshape(-1), diagonal) for gradient, diagonal in gradients if diagonal is not None]
    if scaled:
        plain += torch._foreach_mul(*zip(*scaled, strict=True))
    plain = [gradient.float() if gradient.dtype in _HALF else gradient for gradient in plain]
    norms = torch._foreach_norm(plain)
    return torch.stack([norm.to(norms[0].device) for norm in norms]).square().sum()
