"""PyTorch: a loader that gives each worker exactly its slice of every batch of a stream of samples."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch.utils.data as torch_data
from numpy.typing import NDArray

from idl.errors import InvalidRequestError
from worker.data.micro_batches import MicroBatch
from worker.data.sample_stream import Stream, StreamOrder
from worker.data.slices import Slice
from worker.data.source import Source
from worker.own_session import own_session
from worker.session import Session
from worker.torch.loader import Loader
from worker.weights import WEIGHT_LIMIT, Weigh


class StreamLoader(Loader):
    """A loader like `worker.torch.loader.DataLoader`, for an `IterableDataset` or any other iterable.

    Every worker reads the same stream, and takes the positions that the manager plans for it. The samples of
    a batch, and their order, depend on neither the number of workers nor their batch sizes.

    Args:
        dataset: Yields the same samples in the same order each time that it is iterated over, on every
            worker. If it has a method `iter_from(position)`, a worker that joins or resumes in the middle of
            an epoch need not read the samples before.
        batch_size: Samples of a whole batch, over all workers; or these by the first epoch that has them,
            such as `{0: 64, 30: 256}`.
        session: The session with the services; by default this process's.
        size: Samples in the stream; by default the data set's length or, if it has none, their number
            counted in a first pass.
        shuffle_buffer: Samples of the blocks within which each epoch permutes the samples; 0 keeps their
            order. The same for every worker. Two such blocks and the largest batch so far are kept in memory
            at most.
        seed: Seed of these permutations.
        drop_last: Whether an epoch's last, smaller batch is left out.
        micro_batch: Samples of a micro-batch, as for `worker.torch.loader.DataLoader`. Random augmentation
            belongs into `collate_fn`, whose generators are seeded; the stream itself is not. A worker reads
            its first micro-batch twice, and warns if the samples differ.
        collate_fn: Makes a batch from a list of samples.
        weight: As for `worker.torch.loader.DataLoader`.
        weight_limit: Likewise.

    Raises:
        InvalidRequestError: A value is not allowed, the data set can be iterated over only once, or the
            session has a loader already.
    """

    def __init__(
        self,
        dataset: Iterable[Any],
        batch_size: int | Mapping[int, int] = 1,
        *,
        session: Session | None = None,
        size: int | None = None,
        shuffle_buffer: int = 0,
        seed: int = 0,
        drop_last: bool = False,
        micro_batch: int | None = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        weight: Weigh | str | None = None,
        weight_limit: int = WEIGHT_LIMIT,
    ) -> None:
        session = session or own_session()
        stream = Stream(dataset, size, session.log)
        self._order = StreamOrder(stream.size, shuffle_buffer, seed)
        super().__init__(
            _StreamSource(dataset, stream, self._order, collate_fn or torch_data.default_collate),
            batch_size,
            session,
            seed=seed,
            drop_last=drop_last,
            micro_batch=micro_batch,
            weight=weight,
            weight_limit=weight_limit,
        )
        self.dataset = dataset

    def state_dict(self) -> dict[str, Any]:
        """Return the job's position, for a checkpoint; see `worker.data.slices.Slices.state_dict`."""
        return super().state_dict() | {"shuffle_buffer": self._order.shuffle_buffer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a checkpoint, before the training begins; see `Slices.load_state_dict`.

        Raises:
            InvalidRequestError: The checkpoint's samples had another order, or it cannot be loaded.
        """
        super().load_state_dict(state)
        saved = state.get("shuffle_buffer")
        if saved != self._order.shuffle_buffer:
            raise InvalidRequestError(
                f"the checkpoint is of shuffle_buffer {saved}, but this is {self._order.shuffle_buffer}"
            )


class _StreamSource(Source):
    """A stream's samples in their order, a slice's at consecutive positions: it is not shuffled itself."""

    is_seeded = False  # samples are read in passing, too

    def __init__(
        self, dataset: Any, stream: Stream, order: StreamOrder, collate: Callable[[list[Any]], Any]
    ) -> None:
        super().__init__(dataset, stream.size, stream.samples, collate)
        self._stream = stream
        self._order = order

    def take(self, part: Slice) -> None:
        # A batch, whose size may have changed, and the blocks in which it begins and ends.
        self._stream.keep(part.assignment.total + 2 * self._order.shuffle_buffer)

    def forget(self, part: MicroBatch) -> bool:
        return self._stream.forget(int(self._places(part).max()))

    def samples(self, part: Slice | MicroBatch) -> Any:
        return self.load(self._places(part))

    def _places(self, part: Slice | MicroBatch) -> NDArray[np.int64]:
        return self._order.indices(part.epoch, int(part.indices[0]), len(part.indices))
