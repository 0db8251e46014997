"""The cuts between the micro-batches of a batch, which depend on its size alone. Pure values."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise


@dataclass(frozen=True, slots=True)
class Cuts:
    """The cuts of a batch into micro-batches, as positions counted from the batch's first sample.

    A micro-batch is what VirtualFlow (section 3.2) calls a virtual node: its samples are computed together,
    by whichever worker has it. All have `size` samples. Where that does not divide the batch, the last two
    share evenly what the others leave, so that none has a single sample, which batch normalisation refuses;
    with a size of 2, one of three samples takes the odd one.
    """

    total: int  # samples of the batch, at least 1
    size: int  # samples of a micro-batch; with 1, any position is a cut

    def __len__(self) -> int:
        """Return the number of micro-batches."""
        return self.number(self.total)

    @property
    def padded(self) -> int:
        """Return the samples that the batch would have if all of its micro-batches were whole."""
        return len(self) * self.size

    def number(self, count: int) -> int:
        """Return the number of micro-batches in a slice of `count` samples that begins and ends on cuts."""
        number = -(-count // self.size)
        return number if self.size == 1 else max(min(number, 1), min(number, count // 2))

    def position(self, index: int) -> int:
        """Return the first position of a micro-batch; `total` for the index after the last."""
        number = len(self)
        if index < number - 1:
            return index * self.size
        if index >= number:
            return self.total
        return self.total - (self.total - (number - 2) * self.size) // 2 if number > 1 else 0

    def index(self, position: int) -> int:
        """Return the index of the micro-batch that begins at a position; at the batch's end, their number.

        Raises:
            ValueError: The position is not a cut.
        """
        nearest = min(position // self.size, len(self))
        for index in (nearest, nearest - 1, nearest + 1):
            if index >= 0 and self.position(index) == position and index <= len(self):
                return index
        raise ValueError(
            f"position {position} of a batch of {self.total} samples: not a cut between micro-batches "
            f"of {self.size}"
        )

    def within(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield each micro-batch of a slice as (first position, position after its last).

        Args:
            start: The slice's first position, a cut.
            stop: The position after its last, a cut.

        Raises:
            ValueError: One of them is not a cut.
        """
        indices = range(self.index(start), self.index(stop) + 1)
        return pairwise(map(self.position, indices))

    def counts(self, numbers: Iterable[int], first: int = 0) -> list[int]:
        """Return the samples of consecutive slices.

        Args:
            numbers: The number of each slice's micro-batches.
            first: Index of the first slice's first micro-batch.
        """
        cuts = map(self.position, accumulate(numbers, initial=first))
        return [stop - start for start, stop in pairwise(cuts)]
