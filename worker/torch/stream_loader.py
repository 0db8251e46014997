"""PyTorch: a loader that gives each worker exactly its slice of every batch of a stream of samples."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch.utils.data as torch_data
from numpy.typing import NDArray

from idl.errors import InvalidRequestError
from worker.data.micro_batches import Draws, MicroBatch
from worker.data.sample_stream import Stream, StreamOrder
from worker.data.slices import Slices
from worker.own_session import own_session
from worker.session import Session
from worker.torch.micro_batches import Accumulation, SlicedBatch
from worker.torch.randomness import seed_generators


class StreamLoader:
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
            belongs into `collate_fn`, whose generators are seeded; the stream itself is not.
        collate_fn: Makes a batch from a list of samples.

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
        collate_fn: Callable[[list[Any]], Any] = torch_data.default_collate,
    ) -> None:
        session = session or own_session()
        self._stream = Stream(dataset, size, session.log_fields())
        self._order = StreamOrder(self._stream.size, shuffle_buffer, seed)
        self.slices = Slices(
            self._stream.size, batch_size, session, seed=seed, drop_last=drop_last, micro_batch=micro_batch
        )
        self.session = session
        self.accumulation: Accumulation | None = None
        self.dataset = dataset
        self.batch_size = self.slices.spec.total_batch_size
        self._collate = collate_fn

    def __len__(self) -> int:
        """Return the number of batches of the current epoch; it changes if the batch size does."""
        return len(self.slices)

    @property
    def progress(self) -> float:
        """The progress before the present batch, in batches of the first size; see `Slices.progress`."""
        return self.slices.progress

    def __iter__(self) -> Iterator[Any]:
        """Yield this worker's parts of the next epoch's batches, as `collate_fn` makes them.

        In a job with micro-batches, `evenpace.torch.micro_batches` makes them of what is yielded.

        Raises:
            InvalidRequestError: The last epoch was not finished, or an iteration or a micro-batch was not; or
                the stream does not have `size` samples.
            EvenpaceError: As `Session.join` and `Session.finish_iteration` raise.
        """
        for part in self.slices:
            # A batch, whose size may have changed, and the blocks in which it begins and ends.
            self._stream.keep(part.assignment.total + 2 * self._order.shuffle_buffer)
            if part.micro_batches:
                yield SlicedBatch(part, self._load, self.accumulation)
            else:
                with self.session.tally.phase("load", part.assignment):
                    batch = self._collate(self._samples(part.assignment.epoch, part.indices))
                yield batch
            if self.session.uses_all_reduce and self.accumulation is not None:
                self.accumulation.check()

    def state_dict(self) -> dict[str, Any]:
        """Return the job's position, for a checkpoint; see `worker.data.slices.Slices.state_dict`."""
        return self.slices.state_dict() | {"shuffle_buffer": self._order.shuffle_buffer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a checkpoint, before the training begins; see `Slices.load_state_dict`.

        Raises:
            InvalidRequestError: The checkpoint's samples had another order, or it cannot be loaded.
        """
        self.slices.load_state_dict(state)
        saved = state.get("shuffle_buffer")
        if saved != self._order.shuffle_buffer:
            raise InvalidRequestError(
                f"the checkpoint is of shuffle_buffer {saved}, but this is {self._order.shuffle_buffer}"
            )

    def _load(self, part: MicroBatch) -> Any:
        """Return a micro-batch as `collate_fn` makes it, with random numbers of its own."""
        with self.session.tally.phase("load", self.session.assignment):
            samples = self._samples(part.epoch, part.indices)
            seed_generators(part.seed(Draws.COMPUTING))
            return self._collate(samples)

    def _samples(self, epoch: int, positions: NDArray[np.int64]) -> list[Any]:
        """Return the samples at consecutive positions of an epoch: the indices of an unshuffled slice."""
        return self._stream.samples(self._order.indices(epoch, int(positions[0]), len(positions)))
