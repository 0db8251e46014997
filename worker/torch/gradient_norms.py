"""PyTorch: squared norms of gradients, where a backward pass or a reduction has just made them."""

from collections.abc import Iterable, Sequence

import torch

_PIECE = 2**16  # elements: sums of float32 over millions of them are too small by a thousandth on CPUs


def squared_norm(gradient: torch.Tensor) -> torch.Tensor | float:
    """Return the squared norm of a dense tensor; off the CPU as a tensor, which nothing waits for."""
    flat = gradient.reshape(-1)  # a step for each tensor costs more than the sum itself
    if flat.requires_grad:
        flat = flat.detach()
    if flat.dtype in (torch.float16, torch.bfloat16):
        flat = flat.float()
    if not flat.is_cpu:
        return torch.dot(flat, flat)
    if len(flat) <= _PIECE:
        return float(torch.dot(flat, flat))
    return sum((float(torch.dot(piece, piece)) for piece in torch.split(flat, _PIECE)), 0.0)


def squared_norm_of(gradients: Iterable[torch.Tensor | None]) -> torch.Tensor | float:
    """Return the squared norm of several tensors together; None is one of zeros, and so is a sparse one."""
    total: torch.Tensor | float = 0.0
    for gradient in gradients:
        if gradient is not None and gradient.layout is torch.strided:
            total = total + squared_norm(gradient)
    return total


class PassNorms:
    """The squared norm of what one backward pass adds to the parameters' `grad`, which sums many passes.

    Args:
        parameters: The parameters that are trained.
    """

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        self._squares: torch.Tensor | float | None = None  # None outside of a pass that is measured
        for parameter in parameters:
            parameter.register_hook(self.add)  # type: ignore[no-untyped-call]

    def begin(self) -> None:
        """Measure the passes from now on."""
        self._squares = 0.0

    def take(self) -> torch.Tensor | float:
        """Return the squared norm of what was added since `begin`, and measure no further."""
        squares, self._squares = self._squares, None
        return 0.0 if squares is None else squares

    def add(self, gradient: torch.Tensor) -> None:
        """Add what a pass adds to one parameter; called by its hook."""
        if self._squares is not None and gradient.layout is torch.strided:
            self._squares = self._squares + squared_norm(gradient)
