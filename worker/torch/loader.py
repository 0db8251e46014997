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
    """A data set with a length and an item for each index."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Any: ...


class Loader(Protocol):
    """Any evenpace loader; functions that exchange gradients use its session."""

    session: Session


class DataLoader:
    """A replacement of `torch.utils.data.DataLoader` for the training data.

    Each pass over it is one epoch of the job. Batches vary in size from iteration to iteration, as the
    manager plans them; where this worker has no part in a batch (the last of an epoch may be too small),
    it gets a sample whose gradient has no weight. A worker that joins a running job skips the epochs that are
    done. With backup workers, a straggler skips batches and epochs that were done without it.

    Args:
        dataset: A map-style data set.
        batch_size: Samples of a whole batch, over all workers.
        shuffle: Whether each epoch has a permutation of its own.
        seed: Seed of the permutations.
        drop_last: Whether an epoch's last, smaller batch is left out.
        num_workers: Processes that load samples ahead of time; 0 loads them in this process when needed.
        prefetch_factor: Batches that each of them loads ahead.
        collate_fn: Makes a batch from a list of samples.
        worker_init_fn: Called with the process's number in each loading process.
        session: The session with the services; by default this process's.

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
        """Return the number of batches of the current epoch; it changes if the batch size does."""
        return len(self.slices)

    def __iter__(self) -> Iterator[Any]:
        """Yield this worker's parts of the next epoch's batches, as `collate_fn` makes them.

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
        """Return the job's position, for a checkpoint; see `worker.data.slices.Slices.state_dict`."""
        return self.slices.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a checkpoint, before the training begins; see `Slices.load_state_dict`."""
        self.slices.load_state_dict(state)


class _Fetcher(Protocol):
    def begin(self) -> None: ...

    def samples(self, part: Slice) -> list[Any]: ...


class _Direct:
    """A fetcher that loads samples when they are needed."""

    def __init__(self, dataset: MapStyleDataset) -> None:
        self._dataset = dataset

    def begin(self) -> None:
        """Do nothing: there is nothing to prepare."""

    def samples(self, part: Slice) -> list[Any]:
        return load(self._dataset, part.indices)


class _Prefetching:
    """A fetcher whose processes load the slices that this worker will *probably* get, ahead of time.

    Samples that were not guessed are loaded in this process. Plans change little, so these are few.
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
        self._last = -1  # the last iteration that samples were taken for
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
        """Return the samples loaded ahead for an iteration, by index; none for its second slice or later."""
        guesses = self._guesses
        if wanted.epoch != guesses.epoch or wanted.iteration < self._last:
            guesses.epoch = wanted.epoch
            guesses.asked.clear()
            self._loaded = iter(self._loader)
        self._last = wanted.iteration
        at_hand = {}
        while guesses.asked and guesses.asked[0][0] <= wanted.iteration:
            # Guesses for earlier iterations are for those that this worker has skipped.
            iteration, guess = guesses.asked.popleft()
            loaded = next(self._loaded)
            if iteration == wanted.iteration:
                at_hand = dict(zip(guess, pickle.loads(loaded), strict=True))
        return at_hand


class _Guesses:
    """A batch sampler for torch that yields guesses of the slices of an epoch's next iterations.

    A loading process is asked for samples possibly before their iteration is planned. A plan is followed
    where it exists; for later iterations, the share of the last plan's batch is the guess.

    It does not know the loader that uses it: in a cycle of references, torch's loading processes would not be
    ended in time.

    Attributes:
        epoch: The current epoch.
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
    """Let a loading process end with its worker, whose connections it would hold open, and initialise it."""
    end_with_parent(parent)
    if user_init is not None:
        user_init(number)


class _Pickled(torch_data.Dataset[bytes]):
    """A data set for loading processes, whose items are the pickled samples of a list of indices."""

    def __init__(self, dataset: MapStyleDataset) -> None:
        self._dataset = dataset

    def __getitem__(self, indices: list[int]) -> bytes:
        return pickle.dumps(load(self._dataset, np.array(indices, dtype=np.int64)), protocol=5)


def _only(batch: list[bytes]) -> bytes:
    return batch[0]


def load(dataset: MapStyleDataset, indices: Sequence[int] | NDArray[np.int64]) -> list[Any]:
    """Return the samples at `indices`, with one call where the data set has `__getitems__`."""
    plain = [int(index) for index in indices]
    if hasattr(dataset, "__getitems__"):
        samples: list[Any] = dataset.__getitems__(plain)
        return samples
    return [dataset[index] for index in plain]
