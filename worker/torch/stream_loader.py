"""PyTorch: a loader that gives each worker its slice of every batch of a data set that is a stream."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch.utils.data as torch_data

from idl.errors import InvalidRequestError
from worker.data.sample_stream import Stream, StreamOrder
from worker.data.slices import Slices
from worker.own_session import own_session
from worker.session import Session


class StreamLoader:
    """As `worker.torch.loader.DataLoader`, for an `IterableDataset` or whatever else can be iterated over.

    Every worker goes through the same stream, and takes the positions that the manager plans for it. Which
    samples make up a batch, and in what order, depends on neither the number of workers nor their batch
    sizes.

    Args:
        dataset: Gives the same samples in the same order each time that it is iterated over, on every worker.
            Where it has a method `iter_from(position)`, a worker that joins or resumes in the middle of an
            epoch need not read what comes before.
        batch_size: Samples of a whole batch, over all workers.
        session: With the services; by default this process's.
        size: Samples in the stream; left out, it is the data set's length or, if it has none, counted in a
            first pass.
        shuffle_buffer: Each epoch permutes the samples within blocks of so many; 0 keeps their order. The
            same for every worker. Two such blocks and a batch are kept in memory at most.
        seed: Of these permutations.
        drop_last: Whether an epoch's last, smaller batch is left out.
        collate_fn: Makes a batch from a list of samples.

    Raises:
        InvalidRequestError: A value is not allowed, the data set can be iterated over but once, or the
            session has a loader already.
    """

    def __init__(
        self,
        dataset: Iterable[Any],
        batch_size: int = 1,
        *,
        session: Session | None = None,
        size: int | None = None,
        shuffle_buffer: int = 0,
        seed: int = 0,
        drop_last: bool = False,
        collate_fn: Callable[[list[Any]], Any] = torch_data.default_collate,
    ) -> None:
        session = session or own_session()
        # A batch, and the blocks in which it begins and ends.
        self._stream = Stream(dataset, size, batch_size + 2 * shuffle_buffer, session.log_fields())
        self._order = StreamOrder(self._stream.size, shuffle_buffer, seed)
        self.slices = Slices(self._stream.size, batch_size, session, seed=seed, drop_last=drop_last)
        self.session = session
        self.dataset = dataset
        self.batch_size = batch_size
        self._collate = collate_fn

    def __len__(self) -> int:
        """How many batches the current epoch has; it changes if the batch size does."""
        return len(self.slices)

    def __iter__(self) -> Iterator[Any]:
        """This worker's parts of the next epoch's batches, as `collate_fn` makes them.

        Raises:
            InvalidRequestError: The last epoch was not finished, or an iteration was not; or the stream does
                not have `size` samples.
            EvenpaceError: As `Session.join` and `Session.finish_iteration` raise.
        """
        for part in self.slices:
            start, count = int(part.indices[0]), len(part.indices)  # unshuffled, they are the positions
            with self.session.tally.phase("load", part.assignment):
                places = self._order.indices(part.assignment.epoch, start, count)
                batch = self._collate(self._stream.samples(places))
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """Where the job stands, for a checkpoint; see `worker.data.slices.Slices.state_dict`."""
        return self.slices.state_dict() | {"shuffle_buffer": self._order.shuffle_buffer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint, before the training begins; see `Slices.load_state_dict`.

        Raises:
            InvalidRequestError: The checkpoint's samples had another order; or as there.
        """
        self.slices.load_state_dict(state)
        saved = state.get("shuffle_buffer")
        if saved != self._order.shuffle_buffer:
            raise InvalidRequestError(
                f"the checkpoint is of shuffle_buffer {saved}, but this is {self._order.shuffle_buffer}"
            )
