"""Random access to the samples of a stream, in an order of their own.

This module knows the data set as an object that can be iterated over repeatedly, and no framework, session or
wire: it maps epochs and positions to samples.
"""

from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from idl.errors import InvalidRequestError
from idl.plan import JobSpec, permutation
from rpc.field_log import FieldLog

log = FieldLog(__name__)


@dataclass(frozen=True)
class StreamOrder:
    """The order in which a stream's samples are used: a function of these numbers and the epoch alone.

    Attributes:
        shuffle_buffer: Samples of a block, within which they are permuted; 0 keeps the stream's order. A
            block as large as the stream gives the order of a shuffled map-style data set.

    Raises:
        InvalidRequestError: A number is out of its range.
    """

    size: int  # samples in the stream
    shuffle_buffer: int = 0
    seed: int = 0  # seed of the permutations

    def __post_init__(self) -> None:
        if not 0 <= self.shuffle_buffer < 2**31:
            raise InvalidRequestError(f"shuffle_buffer {self.shuffle_buffer}: must be from 0 to 2^31 - 1")

    def indices(self, epoch: int, start: int, count: int) -> NDArray[np.int64]:
        """Return the places in the stream, (count,), of an epoch's positions from `start` on."""
        length = self.shuffle_buffer
        if not length:
            return np.arange(start, start + count)
        first = start // length
        last = (start + count - 1) // length
        blocks = [self._block(epoch, block) for block in range(first, last + 1)]
        return np.concatenate(blocks)[start - first * length :][:count]

    def _block(self, epoch: int, block: int) -> NDArray[np.int64]:
        """Return a block's places in permuted order, as an epoch of a data set of the block's size."""
        begin = block * self.shuffle_buffer
        length = min(self.shuffle_buffer, self.size - begin)
        blocks = -(-self.size // self.shuffle_buffer)
        return begin + _permutation(length, self.seed, epoch * blocks + block)


@lru_cache(maxsize=4)
def _permutation(length: int, seed: int, number: int) -> NDArray[np.int64]:
    return permutation(JobSpec(length, 1, seed, shuffle=True), number)


class Stream:
    """Samples of a data set that can only be read from its beginning.

    Samples in between are read and skipped. The samples read last are kept, so that those of the same batch
    need not be read again; for earlier ones, the data set is iterated over again. A data set with a method
    `iter_from(position)`, which iterates from that position on, is read from there.

    Args:
        dataset: Yields the same samples in the same order each time.
        size: Number of samples; None takes the data set's length if it has one, and counts them otherwise.

    Raises:
        InvalidRequestError: The data set cannot be iterated over more than once.
    """

    def __init__(
        self,
        dataset: Iterable[Any],
        size: int | None,
        log: FieldLog = log,
    ) -> None:
        if isinstance(dataset, Iterator) or not hasattr(dataset, "__iter__"):
            raise InvalidRequestError(
                f"dataset {type(dataset).__name__}: must be something that can be iterated over "
                f"repeatedly, once for each epoch, such as an IterableDataset or a list, and not an iterator "
                f"or a generator"
            )
        self._dataset = dataset
        self.size = _size(dataset, log.of(__name__)) if size is None else size  # number of samples
        self._recent_samples = 0  # that are kept
        self._iterator: Iterator[Any] = iter(())
        self._next = -1  # the place of the iterator's next sample; -1 before the first iterator
        self._recent: dict[int, Any] = {}  # by their places, the samples right before `_next`

    def keep(self, recent: int) -> None:
        """Keep at least so many of the samples read last, from now on."""
        self._recent_samples = max(self._recent_samples, recent)

    def forget(self, place: int) -> bool:
        """Drop the samples that are kept, so that those up to a place are read again.

        Returns:
            Whether that was done: not if more samples than are kept would have to be read.
        """
        if place >= self._recent_samples and not hasattr(self._dataset, "iter_from"):
            return False
        self._next = -1
        return True

    def samples(self, indices: NDArray[np.int64]) -> list[Any]:
        """Return the samples at one or more places of the stream; those between are kept, however many.

        Raises:
            InvalidRequestError: The stream has fewer samples, or more, than it should have.
        """
        first, last = int(indices.min()), int(indices.max())
        self.keep(last - first + 1)
        if not self._is_near(first):
            self._open(first)
        while self._next <= last:
            self._read()
        return [self._recent[index] for index in indices.tolist()]

    def _is_near(self, place: int) -> bool:
        """Return whether a place is kept, or best reached by reading on."""
        if self._next < 0 or (place < self._next and place not in self._recent):
            return False
        return place - self._next < self._recent_samples or not hasattr(self._dataset, "iter_from")

    def _open(self, place: int) -> None:
        """Iterate again, from a place on if the data set can, else from the beginning."""
        self._recent.clear()
        iter_from = getattr(self._dataset, "iter_from", None)
        self._next = place if iter_from is not None else 0
        self._iterator = iter(self._dataset if iter_from is None else iter_from(place))

    def _read(self) -> None:
        try:
            self._recent[self._next] = next(self._iterator)
        except StopIteration:
            self._raise_wrong_size(f"ended after {self._next} samples")
        self._next += 1
        self._recent.pop(self._next - 1 - self._recent_samples, None)
        if self._next == self.size and next(self._iterator, _END) is not _END:
            self._raise_wrong_size(f"goes on after {self.size} samples")

    def _raise_wrong_size(self, what: str) -> NoReturn:
        raise InvalidRequestError(
            f"the stream {what}, but its size is {self.size}: give `size` as it is, and let the data set "
            f"give the same samples each time that it is iterated over"
        )


_END = object()


def _size(dataset: Iterable[Any], log: FieldLog) -> int:
    if isinstance(dataset, Sized):
        return len(dataset)
    log.info("counting the stream's samples in a first pass; give `size` to spare it")
    size = sum(1 for _ in dataset)
    log.info("the stream has %d samples", size)
    return size
