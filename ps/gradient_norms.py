"""Squared norms of the gradients that pass through a shard, taken while they are in a core's cache.

From them follows the gradient noise (`idl.noise`). This module knows no optimiser and no wire.
"""

from collections.abc import Iterable

import torch

from idl.gradient_norms import GradientNorms
from idl.layout import Layout
from ps.parameters import Contribution

# Elements that are summed at once: sums of float32 over millions of elements are too small by a thousandth.
_PIECE = 2**16


class NormMeter:
    """Meter of the norms of gradients of one layout; statistics are no gradient, and left out.

    Args:
        layout: Layout of the shard's part of the parameters.
    """

    def __init__(self, layout: Layout) -> None:
        self._elements = layout.elements
        self._kept: list[tuple[int, int]] = []  # elements, from the first up to the last of each range
        begin = 0
        for group in layout.groups:
            end = begin + group.elements
            if not group.statistics:
                self._kept.append((begin, end))
            begin = end

    def squares(self, begin: int, piece: torch.Tensor) -> float:
        """Return the squared norm of a gradient's floating-point elements from `begin` on, (n,)."""
        total = 0.0
        for first, last in self._kept:
            kept = piece[max(first - begin, 0) : max(last - begin, 0)]
            total += float(torch.dot(kept, kept)) if len(kept) else 0.0
        return total

    def norms(self, contributions: Iterable[Contribution], mean: torch.Tensor) -> GradientNorms | None:
        """Return the norms of a step; None if a contribution has not come as a whole, or is not finite.

        Args:
            contributions: The gradients that the step is taken with.
            mean: Their weighted mean, (elements,).
        """
        used = list(contributions)
        if any(one.first or one.done < self._elements for one in used):
            return None
        starts = range(0, self._elements, _PIECE)
        squared = sum(self.squares(begin, mean[begin : begin + _PIECE]) for begin in starts)
        norms = GradientNorms.of(((one.count, one.squares) for one in used), squared)
        return norms if norms.is_finite else None
