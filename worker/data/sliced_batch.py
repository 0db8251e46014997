"""A worker's part of a batch as a loader gives it in a job with micro-batches. No framework is known here."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from worker.data.micro_batches import Draws, MicroBatch, batch_seed

if TYPE_CHECKING:  # as in `worker.torch.micro_batches`
    from worker.data.slices import Slice


class SlicedBatch:
    """A worker's part of a batch, of which one micro-batch after the other is loaded.

    A loader makes it when it yields it: from then on, what the script draws is seeded for the whole batch.

    Args:
        load: Loads a micro-batch's samples, makes a batch of them, and seeds the computation that follows.
        way: How a script goes through it, for the error of one that takes it for a batch of samples.
        seed_generators: Seeds the generators that a script may draw from.
    """

    def __init__(
        self,
        part: "Slice",
        load: Callable[[MicroBatch], Any],
        way: str,
        seed_generators: Callable[[int], None],
    ) -> None:
        self.part = part
        self.load = load
        self._way = way
        self._seed_generators = seed_generators
        self._seed(Draws.BEFORE)

    def micro_batches(self) -> Iterator[MicroBatch]:
        """Yield the micro-batches, to be loaded; what is drawn after the last is the whole batch's again."""
        yield from self.part.micro_batches
        self._seed(Draws.AFTER)

    def __len__(self) -> int:
        """Return the number of micro-batches."""
        return len(self.part.micro_batches)

    def __iter__(self) -> NoReturn:
        """Refuse: two micro-batches would be taken for inputs and targets."""
        raise TypeError(f"the job has micro-batches: go through each batch of the loader by {self._way}")

    def _seed(self, draws: Draws) -> None:
        """Seed the generators by the place of the whole batch, which all of its parts share."""
        spec = self.part.micro_batches[0].spec
        self._seed_generators(batch_seed(spec, self.part.assignment, draws))
