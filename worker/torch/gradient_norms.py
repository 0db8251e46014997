"""PyTorch: squared norms of gradients, where a backward pass or a reduction has just made them.

With a preconditioner's diagonal they are those of the gradients multiplied by it.
"""

from collections.abc import Iterable, Sequence
from functools import partial

import torch

_PIECE = 2**16  # elements: sums of float32 over millions of them are too small by a thousandth on CPUs
_HELD = 2**24  # elements of gradients, at most but for the last, that are kept to take their norms together
_HALF = (torch.float16, torch.bfloat16)


def squared_norm(gradient: torch.Tensor, diagonal: torch.Tensor | None = None) -> torch.Tensor | float:
    """Return the squared norm of a dense tensor; off the CPU as a tensor, which nothing waits for.

    Args:
        gradient: The tensor.
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
        gradients: The tensors.
        diagonals: For each its preconditioner, likewise; None for none.
    """
    total: torch.Tensor | float = 0.0
    elsewhere: list[tuple[torch.Tensor, torch.Tensor | None]] = []
    for gradient, diagonal in zip(gradients, diagonals, strict=True):
        if gradient is not None and gradient.layout is torch.strided:
            if gradient.is_cpu:
                total = total + squared_norm(gradient, diagonal)
            else:
                elsewhere.append((gradient, diagonal))
    return total + squared_norm_together(elsewhere) if elsewhere else total


@torch.no_grad()
def squared_norm_together(
    gradients: Sequence[tuple[torch.Tensor, torch.Tensor | None]],
) -> torch.Tensor:
    """Return the squared norm of several dense tensors of one device, by a few kernels for all of them.

    Launching kernels for each tensor takes a GPU longer than the sums themselves.

    Args:
        gradients: At least one tensor, each with its preconditioner, (elements,), or None.
    """
    plain = [gradient for gradient, diagonal in gradients if diagonal is None]
    scaled = [(gradient.reshape(-1), diagonal) for gradient, diagonal in gradients if diagonal is not None]
    if scaled:
        flat, factors = zip(*scaled, strict=True)
        plain += torch._foreach_mul(flat, factors)
    plain = [gradient.float() if gradient.dtype in _HALF else gradient for gradient in plain]
    return torch.stack(torch._foreach_norm(plain)).square().sum()


class PassNorms:
    """The squared norm of what one backward pass adds to the parameters' `grad`, which sums many passes.

    Off the CPU, gradients are kept until there are many, whose norms are taken together. So a pass takes up
    to 64 MiB of float32 more, and the memory of the largest gradient.

    Args:
        parameters: The parameters that are trained.
    """

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        self._squares: torch.Tensor | float | None = None  # None outside of a pass that is measured
        self._diagonals: Sequence[torch.Tensor | None] = ()
        self._kept: list[tuple[torch.Tensor, torch.Tensor | None]] = []  # gradients, with their diagonals
        self._kept_elements = 0
        for number, parameter in enumerate(parameters):
            parameter.register_hook(partial(self.add, number))  # type: ignore[no-untyped-call]

    def begin(self, diagonals: Sequence[torch.Tensor | None]) -> None:
        """Measure the passes from now on, with a preconditioner for each parameter, or None."""
        self._squares, self._diagonals = 0.0, diagonals
        self._kept, self._kept_elements = [], 0

    def take(self) -> torch.Tensor | float:
        """Return the squared norm of what was added since `begin`, and measure no further."""
        self._add_kept()
        squares, self._squares = self._squares, None
        return 0.0 if squares is None else squares

    def add(self, number: int, gradient: torch.Tensor) -> None:
        """Add what a pass adds to the parameter of this number; called by its hook."""
        if self._squares is None or gradient.layout is not torch.strided:
            return
        if gradient.is_cpu:
            self._squares = self._squares + squared_norm(gradient, self._diagonals[number])
            return
        self._kept.append((gradient, self._diagonals[number]))
        self._kept_elements += gradient.numel()
        if self._kept_elements >= _HELD:
            self._add_kept()

    def _add_kept(self) -> None:
        if self._squares is not None and self._kept:
            self._squares = self._squares + squared_norm_together(self._kept)
        self._kept, self._kept_elements = [], 0
