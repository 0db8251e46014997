"""Adam's second moment of one worker's own gradients, for where this worker alone makes the steps.

It is the shards' v then, but for weight decay that goes through the gradient. To fetch theirs would be
another pull of the whole size. This module knows no framework and no wire.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from idl.layout import Layout
from idl.preconditioning import STEPS, inverse_root

_BETA2 = 0.999  # default of all of `idl.preconditioning.PRECONDITIONED`
_PIECE = 2**16  # elements that are computed at once, while they are in a core's cache


class SecondMoment:
    """The running mean of the squares of gradients, with the layout's beta2 and eps for each group.

    Args:
        layout: The layout of the gradients, with an optimiser in `idl.preconditioning.PRECONDITIONED`, and
            without amsgrad.
        dtype: Of the gradients.
    """

    def __init__(self, layout: Layout, dtype: np.dtype[Any]) -> None:
        self._values = np.zeros(layout.elements, dtype)
        self._steps = 0
        self._optimizer = layout.optimizer
        self._pieces: list[tuple[slice, float, float]] = []  # with beta2 and eps
        default_eps = 1e-7 if layout.optimizer.startswith("keras") else 1e-8
        begin = 0
        for group in layout.groups:
            end = begin + group.elements
            beta2, eps = group.options.get("beta2", _BETA2), group.options.get("eps", default_eps)
            for first in range(begin, end, _PIECE) if not group.statistics else ():
                self._pieces.append((slice(first, min(first + _PIECE, end)), beta2, eps))
            begin = end

    def add(self, gradient: NDArray[Any]) -> None:
        """Add the gradient of one more step, (elements,)."""
        self._steps += 1
        for place, beta2, _ in self._pieces:
            squares = np.square(gradient[place])
            squares *= 1 - beta2
            values = self._values[place]
            values *= beta2
            values += squares

    def diagonal(self) -> NDArray[Any] | None:
        """Return the preconditioner P, (elements,), 0 for statistics; None before `STEPS` gradients."""
        if self._steps < STEPS:
            return None
        diagonal = np.zeros_like(self._values)
        for place, beta2, eps in self._pieces:
            factor, addend = inverse_root(self._optimizer, beta2, eps, self._steps)
            root = np.sqrt(self._values[place])
            root *= factor
            root += addend
            np.divide(np.sign(self._values[place]), root, out=diagonal[place])
        return diagonal
