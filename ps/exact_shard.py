"""A shard whose gradients are summed in fixed point, so that any division of the work gives the same bits.

This module knows no sockets and no clock.
"""

from collections.abc import Sequence

import torch

from idl.exact_sums import FixedPoint, mean_of
from idl.layout import Layout
from ps.parameters import Contribution
from ps.shard import Shard


class ExactShard(Shard):
    """A shard for bsp to which workers push sums over their micro-batches, as `idl.exact_sums` makes them.

    Integers are added in any order: of a push that breaks off, what arrived stays in the sum, as in `Shard`,
    and no gradient is held. The sum is divided once, by the samples of the whole batch, in the step.

    Args:
        layout: Layout of the shard's part of the parameters.
    """

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout, partial_steps=False)
        self.pushed_dtype = torch.int64
        self._sums = torch.zeros(layout.elements, dtype=torch.int64)

    @property
    def nbytes(self) -> int:
        """Return the bytes of all that the job has here, with the sums of fixed-point numbers."""
        return super().nbytes + self._sums.nbytes

    def drop(self) -> None:
        """Drop all sums that have arrived since the last step."""
        super().drop()
        self._sums.zero_()

    def step(self) -> None:
        """Take the optimiser's step with the mean over the batch."""
        assert self._total is not None
        sums, form = self._sums.numpy(), FixedPoint(self._total)
        mean = mean_of(sums, self._total, self.layout)
        for low, high, mass in self._masses(self._contributions, self.layout.elements):
            mean[low:high] = form.mean(sums[low:high], mass)
        self._gradient.copy_(torch.from_numpy(mean))
        self._sums.zero_()
        super().step()

    def _divide(self, used: Sequence[Contribution], total: int, end: int) -> None:
        """Do nothing: the sum is divided once, and in double precision."""

    def _accumulate(self, contribution: Contribution, begin: int, piece: torch.Tensor) -> None:
        self._sums[begin : begin + len(piece)].add_(piece)

    def _squares(self, contribution: Contribution, begin: int, piece: torch.Tensor) -> float:
        assert self._total is not None
        mean = piece.double().mul_(FixedPoint(self._total).unit / contribution.mass)
        return super()._squares(contribution, begin, mean)
