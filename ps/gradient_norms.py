"""Squared norms of the gradients that pass through a shard, taken while they are in a core's cache.

From them follows the gradient noise (`idl.noise`). Where the optimiser is Adam or of its kin, they are of the
preconditioned gradients (`idl.preconditioning`). This module knows no wire.
"""

import math
from collections.abc import Iterable
from dataclasses import replace

import torch

from idl.gradient_norms import GradientNorms
from idl.layout import Layout
from idl.preconditioning import PRECONDITIONED
from ps.parameters import Contribution
from ps.preconditioner import Preconditioner

# Elements that are summed at once: sums of float32 over millions of elements are too small by a thousandth.
_PIECE = 2**16


class NormMeter:
    """Meter of the norms of gradients of one layout; statistics are no gradient, and left out.

    Args:
        layout: Layout of the shard's part of the parameters.
    """

    def __init__(self, layout: Layout) -> None:
        self._elements = layout.elements
        self._preconditioner = Preconditioner(layout) if layout.optimizer in PRECONDITIONED else None
        self._kept: list[tuple[int, int]] = []  # elements, from the first up to the last of each range
        for begin, end, group in layout.ranges:
            if not group.statistics:
                self._kept.append((begin, end))

    def prepare(self, optimizer: torch.optim.Optimizer, steps: int) -> None:
        """Prepare for a contribution to an optimiser's next step, by which gradients are preconditioned.

        Args:
            optimizer: The optimiser of the layout.
        """
        if self._preconditioner is not None:
            self._preconditioner.update(optimizer, steps)

    def squares(self, begin: int, piece: torch.Tensor) -> float:
        """Return the squared norm of a gradient's floating-point elements from `begin` on, (n,).

        NaN where the preconditioner is not known yet.
        """
        diagonal = self._preconditioner.diagonal if self._preconditioner is not None else None
        if self._preconditioner is not None and diagonal is None:
            return math.nan
        total = 0.0
        for first, last in self._kept:
            low, high = max(first, begin), min(last, begin + len(piece))
            if low >= high:
                continue
            kept = piece[low - begin : high - begin]
            if diagonal is not None:
                kept = kept * diagonal[low:high]
            total += float(torch.dot(kept, kept))
        return total

    def is_finite(self, begin: int, piece: torch.Tensor) -> bool:
        """Return whether a gradient's elements from `begin` on, (n,), are all finite; statistics left out."""
        ranges = ((max(first - begin, 0), min(last - begin, len(piece))) for first, last in self._kept)
        return all(bool(torch.isfinite(piece[low:high]).all()) for low, high in ranges if low < high)

    def norms(self, contributions: Iterable[Contribution], mean: torch.Tensor) -> GradientNorms | None:
        """Return the norms of a step.

        None if a contribution has not come as a whole, or is not finite; or, with a preconditioner, before
        the first `idl.preconditioning.STEPS` steps.

        Args:
            contributions: The gradients that the step is taken with.
            mean: Their weighted mean, (elements,).
        """
        used = list(contributions)
        if any(one.first or one.done < self._elements for one in used):
            return None
        starts = range(0, self._elements, _PIECE)
        squared = sum(self.squares(begin, mean[begin : begin + _PIECE]) for begin in starts)
        is_weighted = any(one.weight is not None for one in used)
        weights = [one.mass for one in used] if is_weighted else None
        norms = GradientNorms.of(((one.count, one.squares) for one in used), squared, weights)
        return replace(norms, weight=None) if norms.contributions and norms.is_finite else None
