"""PyTorch: a loader that gives each worker exactly its slice of every batch."""

import functools
import os
import pickle
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch.utils.data as torch_data
from numpy.typing import NDArray

from idl.errors import InvalidRequestError
from idl.plan import Assignment
from worker.data.slices import Slice, Slices
from worker.own_session import own_session
from worker.parent import end_with_parent
from worker.session import Session


class MapStyleDataset(Protocol):
    """What can be trained on: a data set with a length and an item for each index."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Any: ...


class Loader(Protocol):
    """Any of our loaders, for what carries gradients: it has their session."""

    session: Session


class DataLoader:
    """Takes the place of `torch.utils.data.DataLoader` for the training data.

    Each pass over it is one epoch of the job. Batches vary in size from iteration to iteration, as the
    manager plans them; where this worker has no part in a batch (the last of an epoch may be too small),
    it gets a sample whose gradient has no weight. A worker that joins a running job passes over the epochs
    that are done. So does one that comes too late with backup workers, and over batches.

    Args:
        dataset: Map-style.
        batch_size: Samples of a whole batch, over all workers.
        shuffle: Whether each epoch has an order of its own.
        seed: Of that order.
        drop_last: Whether an epoch's last, smaller batch is left out.
        num_workers: Processes that load samples ahead of time; 0 loads them here when they are needed.
        prefetch_factor: Batches that each of them loads ahead.
        collate_fn: Makes a batch from a list of samples.
        worker_init_fn: Called with its number in each loading process.
        session: With the services; by default this process's.

    Raises:
        InvalidRequestError: A value is not allowed, or the session has a loader already.
    """

    def __init__(
        self,
        dataset: MapStyleDataset,
        batch_size: int = 1,
        *,
        session: Session | None = None,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        num_workers: int = 0,
        prefetch_factor: int = 2,
        collate_fn: Callable[[list[Any]], Any] = torch_data.default_collate,
        worker_init_fn: Callable[[int], None] | None = None,
    ) -> None:
        if isinstance(dataset, torch_data.IterableDataset) or not hasattr(dataset, "__getitem__"):
            raise InvalidRequestError(
                f"dataset {type(dataset).__name__}: must be map-style, with __len__ and __getitem__"
            )
        if num_workers < 0 or prefetch_factor < 1:
            raise InvalidRequestError(
                f"num_workers {num_workers}, prefetch_factor {prefetch_factor}: must be at least 0 and 1"
            )
        session = session or own_session()
        self.slices = Slices(
            len(dataset), batch_size, session, shuffle=shuffle, seed=seed, drop_last=drop_last
        )
        self.session = session
        self.dataset = dataset
        self.batch_size = batch_size
        self._collate = collate_fn
        self._fetch: _Fetcher = (
            _Prefetching(self.slices, dataset, num_workers, prefetch_factor, worker_init_fn)
            if num_workers
            else _Direct(dataset)
        )

    def __len__(self) -> int:
        """How many batches the current epoch has; it changes if the batch size does."""
        return len(self.slices)

    def __iter__(self) -> Iterator[Any]:
        """This worker's parts of the next epoch's batches, as `collate_fn` makes them.

        Raises:
            InvalidRequestError: The last epoch was not finished, or an iteration was not.
            EvenpaceError: As `Session.join` and `Session.finish_iteration` raise.
        """
        self._fetch.begin()
        for part in self.slices:
            with self.session.tally.phase("load", part.assignment):
                batch = self._collate(self._fetch.samples(part))
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """Where the job stands, for a checkpoint; see `worker.data.slices.Slices.state_dict`."""
        return self.slices.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint, before the training begins; see `Slices.load_state_dict`."""
        self.slices.load_state_dict(state)


class _Fetcher(Protocol):
    def begin(self) -> None: ...

    def samples(self, part: Slice) -> list[Any]: ...


class _Direct:
    """Loads samples when they are needed."""

    def __init__(self, dataset: MapStyleDataset) -> None:
        self._dataset = dataset

    def begin(self) -> None:
        """Nothing to prepare."""

    def samples(self, part: Slice) -> list[Any]:
        return load(self._dataset, part.indices)


class _Prefetching:
    """Lets processes load ahead what this worker will *probably* get, and loads the difference itself.

    Samples that were guessed right are at hand, the others are loaded here. Plans change little, so few are.
    """

    def __init__(
        self,
        slices: Slices,
        dataset: MapStyleDataset,
        num_workers: int,
        prefetch_factor: int,
        worker_init_fn: Callable[[int], None] | None,
    ) -> None:
        self._dataset = dataset
        self._guesses = _Guesses(slices)
        self._loaded: Iterator[bytes] = iter(())
        self._last = -1  # the iteration that samples were taken for last
        # Samples come pickled: as tensors, each would take a file descriptor of its own.
        self._loader: torch_data.DataLoader[bytes] = torch_data.DataLoader(
            _Pickled(dataset),
            batch_sampler=self._guesses,
            collate_fn=_only,
            num_workers=num_workers,
            prefetch_factor=prefetch_factor,
            worker_init_fn=functools.partial(_begin_loading, os.getpid(), worker_init_fn),
            persistent_workers=True,
        )

    def begin(self) -> None:
        """Start to load with the next slice, whose epoch is not known yet."""
        self._guesses.epoch = -1

    def samples(self, part: Slice) -> list[Any]:
        at_hand = self._take(part.assignment)
        wanted = part.indices.tolist()
        missing = [index for index in wanted if index not in at_hand]
        if missing:
            at_hand.update(zip(missing, load(self._dataset, missing), strict=True))
        return [at_hand[index] for index in wanted]

    def _take(self, wanted: Assignment) -> dict[int, Any]:
        """What was loaded ahead for an iteration, by index; nothing for its second slice and further ones."""
        guesses = self._guesses
        if wanted.epoch != guesses.epoch or wanted.iteration < self._last:
            guesses.epoch = wanted.epoch
            guesses.asked.clear()
            self._loaded = iter(self._loader)
        self._last = wanted.iteration
        at_hand = {}
        while guesses.asked and guesses.asked[0][0] <= wanted.iteration:
            # Earlier ones are of iterations that this worker has skipped.
            iteration, guess = guesses.asked.popleft()
            loaded = next(self._loaded)
            if iteration == wanted.iteration:
                at_hand = dict(zip(guess, pickle.loads(loaded), strict=True))
        return at_hand


class _Guesses:
    """A batch sampler for torch: each pass is over the slices guessed for an epoch's iterations to come.

    A loading process is asked for samples before their plan may exist. Where it does, it is followed. Beyond,
    the last plan's part of its batch is taken as a guess for the next ones.

    It does not know the loader that asks it: in a cycle of references, torch's loading processes would not
    hear in time that they are to end.

    Attributes:
        epoch: That is gone through.
        asked: Iteration and indices of the batches that were asked for, oldest first.
    """

    def __init__(self, slices: Slices) -> None:
        self._slices = slices
        self.epoch = -1
        self.asked: deque[tuple[int, list[int]]] = deque()

    def __iter__(self) -> Iterator[list[list[int]]]:
        session, spec = self._slices.session, self._slices.spec
        known = session.assignment
        assert known is not None
        iteration = known.iteration
        while True:
            known = session.planned(iteration) or session.assignment or known
            iteration = max(iteration, known.iteration)
            known_start = spec.batch(known.iteration)[1] if known.batch_start is None else known.batch_start
            start = known_start + (iteration - known.iteration) * known.total
            total = min(known.total, spec.dataset_size - start)
            if known.epoch != self.epoch or total < (known.total if spec.drop_last else 1):
                return
            first = start + round((known.start - known_start) / known.total * total)
            count = round(known.count / known.total * total)
            guess = self._slices.order[first : min(first + count, start + total)].tolist()
            self.asked.append((iteration, guess))
            yield [guess]
            iteration += 1


def _begin_loading(parent: int, user_init: Callable[[int], None] | None, number: int) -> None:
    """In a loading process: end with a worker that is killed, whose connections it holds open, too."""
    end_with_parent(parent)
    if user_init is not None:
        user_init(number)


class _Pickled(torch_data.Dataset[bytes]):
    """In a loading process: a list of indices in, their samples pickled out."""

    def __init__(self, dataset: MapStyleDataset) -> None:
        self._dataset = dataset

    def __getitem__(self, indices: list[int]) -> bytes:
        return pickle.dumps(load(self._dataset, np.array(indices, dtype=np.int64)), protocol=5)


def _only(batch: list[bytes]) -> bytes:
    return batch[0]


def load(dataset: MapStyleDataset, indices: Sequence[int] | NDArray[np.int64]) -> list[Any]:
    """The samples at `indices`, all at once where the data set offers that."""
    plain = [int(index) for index in indices]
    if hasattr(dataset, "__getitems__"):
        samples: list[Any] = dataset.__getitems__(plain)
        return samples
    return [dataset[index] for index in plain]
