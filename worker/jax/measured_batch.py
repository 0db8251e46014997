"""JAX: a worker's part of a batch in micro-batches, with the norms of its gradients; knows no session."""

from collections.abc import Callable, Sequence
from typing import Any

from worker.data.micro_batches import MicroBatch
from worker.data.randomness import seed_generators
from worker.data.sliced_batch import SlicedBatch
from worker.data.slices import Slice
from worker.weights import Weights


class MeasuredBatch(SlicedBatch):
    """A worker's part of a batch in micro-batches, with the norms of the gradients that it had last.

    Args:
        measures: Whether norms are of use.
        weights: What gradients are means over.
    """

    def __init__(
        self, part: Slice, load: Callable[[MicroBatch], Any], measures: bool, weights: Weights
    ) -> None:
        super().__init__(part, load, "`value_and_grad(params, batch)`", seed_generators)
        self.measures = measures
        self.weights = weights
        self.gradient: Any = None  # the gradient that `value_and_grad` has returned last; None before that
        # Samples and squared norm of the mean gradient of each micro-batch that it is from, and what that is
        # a mean over; None for samples.
        self.squares: list[tuple[int, Any, float | None]] = []

    def take(
        self, gradient: Any, squares: Sequence[Any], masses: Sequence[tuple[float, float]] | None = None
    ) -> None:
        """Take what `value_and_grad` has found, in place of what it had found before.

        Args:
            gradient: The mean gradient over the slice.
            squares: Squared norm of each micro-batch's part of a mean, (micro-batches,).
            masses: The weight of each micro-batch, and that of the whole which the mean is over; None: the
                samples.
        """
        self.gradient = gradient
        parts = self.part.micro_batches
        whole = len(self.part.indices)
        given = masses or [(len(part.indices), whole) for part in parts]
        self.squares = [
            (part.count, of_piece * (whole / own) ** 2 if own else 0.0, own if masses else None)
            for part, of_piece, (own, whole) in zip(parts, squares, given, strict=True)
        ]
