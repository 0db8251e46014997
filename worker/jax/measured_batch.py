"""JAX: a worker's part of a batch in micro-batches, with the norms of its gradients; knows no session."""

from collections.abc import Callable, Sequence
from typing import Any

from worker.data.micro_batches import MicroBatch
from worker.data.randomness import seed_generators
from worker.data.sliced_batch import SlicedBatch
from worker.data.slices import Slice


class MeasuredBatch(SlicedBatch):
    """A worker's part of a batch in micro-batches, with the norms of the gradients that it had last.

    Args:
        measures: Whether norms are of use.
    """

    def __init__(self, part: Slice, load: Callable[[MicroBatch], Any], measures: bool) -> None:
        super().__init__(part, load, "`value_and_grad(params, batch)`", seed_generators)
        self.measures = measures
        self.gradient: Any = None  # the gradient that `value_and_grad` has returned last; None before that
        # Samples and squared norm of the mean gradient of each micro-batch that it is from.
        self.squares: list[tuple[int, Any]] = []

    def take(self, gradient: Any, squares: Sequence[Any]) -> None:
        """Take what `value_and_grad` has found, in place of what it had found before.

        Args:
            gradient: The mean gradient over the slice.
            squares: Squared norm of each micro-batch's part of it, (micro-batches,).
        """
        whole = len(self.part.indices)
        self.gradient = gradient
        self.squares = [
            (part.count, of_piece * (whole / len(part.indices)) ** 2)
            for part, of_piece in zip(self.part.micro_batches, squares, strict=True)
        ]
