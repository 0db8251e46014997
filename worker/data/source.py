"""The samples of a data set, as every framework's loader asks for them; no framework is known here."""

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from worker.data.micro_batches import MicroBatch

if TYPE_CHECKING:  # so that this runs without the packages of the services' clients, as in lab/gpu
    from worker.data.slices import Slice, Slices


class Source:
    """A data set of known length, whose samples are loaded by their indices and made into batches.

    Args:
        dataset: The data set.
        size: Its samples.
        load: Loads samples; it is given their indices, (count,).
        collate: Makes a batch of what `load` returns.
    """

    is_seeded = True  # whether generators are seeded before a micro-batch's samples are loaded

    def __init__(
        self, dataset: Any, size: int, load: Callable[..., Any], collate: Callable[[Any], Any]
    ) -> None:
        self.load = load
        self.collate = collate
        self.drawing = {"dataset": dataset, "collate_fn": collate}  # what may draw random numbers, by name
        self._size = size

    def __len__(self) -> int:
        """Return the number of samples."""
        return self._size

    def begin(self, slices: "Slices") -> None:
        """Prepare the loading of the next epoch's slices."""

    def take(self, part: "Slice") -> None:
        """Prepare the loading of a slice, whole or in micro-batches, which comes next."""

    def forget(self, part: MicroBatch) -> bool:
        """Drop kept samples, so that a micro-batch is loaded again; return False if that would take long."""
        return True

    def load_apart(self, wanted: Sequence[tuple[int, int]]) -> Iterator[Any]:
        """Yield samples, each with a seed of what it may draw, and leave generators as they are.

        Args:
            wanted: The seed and the index of each.
        """
        torch = sys.modules.get("torch")  # not imported: a worker has its own framework alone
        for seed, index in wanted:
            states = random.getstate(), np.random.get_state()
            of_torch = torch.default_generator.get_state() if torch else None
            try:
                random.seed(seed)
                np.random.seed(seed)
                if torch:
                    torch.default_generator.manual_seed(seed)
                sample = self.load(np.array([index]))
            finally:
                random.setstate(states[0])
                np.random.set_state(states[1])
                if torch:
                    torch.default_generator.set_state(of_torch)
            yield sample

    def samples(self, part: "Slice | MicroBatch") -> Any:
        """Return the samples of a slice or a micro-batch."""
        return self.load(part.indices)


def load(dataset: Any, indices: Sequence[int] | NDArray[np.int64]) -> list[Any]:
    """Return the samples at `indices`, with one call where the data set has `__getitems__`."""
    plain = [int(index) for index in indices]
    if hasattr(dataset, "__getitems__"):
        samples: list[Any] = dataset.__getitems__(plain)
        return samples
    return [dataset[index] for index in plain]
