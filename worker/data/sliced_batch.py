"""A worker's part of a batch as a loader gives it in a job with micro-batches. No framework is known here."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from worker.data.micro_batches import MicroBatch

if TYPE_CHECKING:  # as in `worker.torch.micro_batches`
    from worker.data.slices import Slice


class SlicedBatch:
    """A worker's part of a batch, of which one micro-batch after the other is loaded.

    Args:
        part: The slice.
        load: Loads a micro-batch's samples, makes a batch of them, and seeds the computation that follows.
        way: How a script goes through it, for the error of one that takes it for a batch of samples.
    """

    def __init__(self, part: "Slice", load: Callable[[MicroBatch], Any], way: str) -> None:
        self.part = part
        self.load = load
        self._way = way

    def __len__(self) -> int:
        """Return the number of micro-batches."""
        return len(self.part.micro_batches)

    def __iter__(self) -> NoReturn:
        """Refuse: two micro-batches would be taken for inputs and targets."""
        raise TypeError(f"the job has micro-batches: go through each batch of the loader by {self._way}")
