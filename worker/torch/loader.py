"""PyTorch: a loader that gives each worker exactly its slice of every batch."""

import functools
import os
import pickle
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch.utils.data as torch_data
from numpy.typing import NDArray

from idl.errors import InvalidRequestError
from idl.plan import Assignment
from worker.data.micro_batches import Draws, MicroBatch
from worker.data.randomness import SeededLoading
from worker.data.slices import Slice, Slices
from worker.own_session import own_session
from worker.parent import end_with_parent
from worker.session import Session
from worker.torch.micro_batches import Accumulation, SlicedBatch
from worker.torch.randomness import seed_generators

# Of a slice that may be needed: a seed, and indices, for each of its micro-batches; or None, and all indices.
_Guess = list[tuple[int | None, list[int]]]


class MapStyleDataset(Protocol):
    """A data set with a length and an item for each index."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Any: ...


class Loader(Protocol):
    """Any evenpace loader; functions that exchange gradients use its session, and set its accumulation."""

    session: Session
    accumulation: Accumulation | None


class DataLoader:
    """A replacement of `torch.utils.data.DataLoader` for the training data.

    Each pass over it is one epoch of the job. Batches vary in size from iteration to iteration, as the
    manager plans them; where this worker has no part in a batch (the last of an epoch may be too small),
    it gets a sample whose gradient has no weight. A worker that joins a running job skips the epochs that are
    done. With backup workers, a straggler skips batches and epochs that were done without it.

    Args:
        dataset: A map-style data set.
        batch_size: Samples of a whole batch, over all workers; or these by the first epoch that has them,
            such as `{0: 64, 30: 256}`.
        shuffle: Whether each epoch has a permutation of its own.
        seed: Seed of the permutations.
        drop_last: Whether an epoch's last, smaller batch is left out.
        micro_batch: Samples of a micro-batch. With it, what it yields is gone through by
            `evenpace.torch.micro_batches`, and the parameters do not depend on the number of workers and
            their shares, with batch normalisation, dropout and random augmentation, too. None: a worker's
            part of a batch is one batch of samples.
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
        batch_size: int | Mapping[int, int] = 1,
        *,
        session: Session | None = None,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        micro_batch: int | None = None,
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
            len(dataset),
            batch_size,
            session,
            shuffle=shuffle,
            seed=seed,
            drop_last=drop_last,
            micro_batch=micro_batch,
        )
        self.session = session
        self.accumulation: Accumulation | None = None
        self.dataset = dataset
        self.batch_size = self.slices.spec.total_batch_size
        self._collate = collate_fn
        self._seeded = SeededLoading(dataset, seed_generators, session.log_fields)
        self._fetch: _Fetcher = (
            _Prefetching(self.slices, dataset, num_workers, prefetch_factor, worker_init_fn)
            if num_workers
            else _Direct(dataset)
        )

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
            InvalidRequestError: The last epoch was not finished, or an iteration or a micro-batch was not.
            EvenpaceError: As `Session.join` and `Session.finish_iteration` raise.
        """
        self._fetch.begin()
        for part in self.slices:
            with self.session.tally.phase("load", part.assignment):
                self._fetch.take(part)
                batch = None if part.micro_batches else self._collate(self._fetch.samples(part.indices))
            yield SlicedBatch(part, self._load, self.accumulation) if part.micro_batches else batch
            if self.session.uses_all_reduce and self.accumulation is not None:
                self.accumulation.check()

    def state_dict(self) -> dict[str, Any]:
        """Return the job's position, for a checkpoint; see `worker.data.slices.Slices.state_dict`."""
        return self.slices.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a checkpoint, before the training begins; see `Slices.load_state_dict`."""
        self.slices.load_state_dict(state)

    def _load(self, part: MicroBatch) -> Any:
        """Return a micro-batch as `collate_fn` makes it, with random numbers of its own."""
        with self.session.tally.phase("load", self.session.assignment):
            seed = part.seed(Draws.LOADING)
            samples = self._seeded.load(part, lambda: self._fetch.samples(part.indices, seed))
            return self._collate(samples)


class _Fetcher(Protocol):
    def begin(self) -> None:
        """Prepare an epoch."""

    def take(self, part: Slice) -> None:
        """Prepare a slice."""

    def samples(self, indices: NDArray[np.int64], seed: int | None = None) -> list[Any]:
        """Return samples of the slice: all, or those of a micro-batch, whose seed was set."""


class _Direct:
    """A fetcher that loads samples when they are needed."""

    def __init__(self, dataset: MapStyleDataset) -> None:
        self._dataset = dataset

    def begin(self) -> None:
        """Do nothing: there is nothing to prepare."""

    def take(self, part: Slice) -> None:
        """Do nothing: there is nothing to prepare."""

    def samples(self, indices: NDArray[np.int64], seed: int | None = None) -> list[Any]:
        return load(self._dataset, indices)


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
        self._at_hand: dict[int | None, dict[int, Any]] = {}  # by seed and index
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

    def samples(self, indices: NDArray[np.int64], seed: int | None = None) -> list[Any]:
        wanted = indices.tolist()
        at_hand = self._at_hand.pop(seed, {})
        missing = [index for index in wanted if index not in at_hand]
        if seed is not None and list(at_hand) != wanted:
            return load(self._dataset, wanted)
        if missing:
            at_hand.update(zip(missing, load(self._dataset, missing), strict=True))
        return [at_hand[index] for index in wanted]

    def take(self, part: Slice) -> None:
        """Take the samples loaded ahead for an iteration; there are none for its second slice or later."""
        wanted, guesses = part.assignment, self._guesses
        if wanted.epoch != guesses.epoch or wanted.iteration < self._last:
            guesses.epoch = wanted.epoch
            guesses.asked.clear()
            self._loaded = iter(self._loader)
        self._last = wanted.iteration
        self._at_hand = {}
        while guesses.asked and guesses.asked[0][0] <= wanted.iteration:
            # Guesses for earlier iterations are for those that this worker has skipped.
            iteration, guess = guesses.asked.popleft()
            loaded = next(self._loaded)
            if iteration == wanted.iteration:
                self._at_hand = {
                    seed: dict(zip(indices, samples, strict=True))
                    for (seed, indices), samples in zip(guess, pickle.loads(loaded), strict=True)
                }


class _Guesses:
    """A batch sampler for torch that yields guesses of the slices of an epoch's next iterations.

    A loading process is asked for samples possibly before their iteration is planned. A plan is followed
    where it exists; for later iterations, the share of the last plan's batch is the guess.

    It does not know the loader that uses it: in a cycle of references, torch's loading processes would not be
    ended in time.

    Attributes:
        epoch: The current epoch.
        asked: Iteration, and seeds and indices, of the batches that were asked for, oldest first.
    """

    def __init__(self, slices: Slices) -> None:
        self._slices = slices
        self.epoch = -1
        self.asked: deque[tuple[int, _Guess]] = deque()

    def __iter__(self) -> Iterator[list[_Guess]]:
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
            before, cuts = spec.cuts(known.total), spec.cuts(total)
            share = len(cuts) / len(before)
            first = cuts.position(round(before.index(known.start - known_start) * share))
            stop = cuts.position(round(before.index(known.end - known_start) * share))
            part = self._slices.slice_of(
                Assignment(iteration, known.epoch, start + first, stop - first, total, batch_start=start)
            )
            guess: _Guess = [(None, part.indices.tolist())]
            if part.micro_batches:
                guess = [(one.seed(Draws.LOADING), one.indices.tolist()) for one in part.micro_batches]
            self.asked.append((iteration, guess))
            yield [guess]
            iteration += 1


def _begin_loading(parent: int, user_init: Callable[[int], None] | None, number: int) -> None:
    """Let a loading process end with its worker, whose connections it would hold open, and initialise it."""
    end_with_parent(parent)
    if user_init is not None:
        user_init(number)


class _Pickled(torch_data.Dataset[bytes]):
    """A data set for loading processes, whose items are the pickled samples of lists of indices."""

    def __init__(self, dataset: MapStyleDataset) -> None:
        self._dataset = dataset

    def __getitem__(self, guess: _Guess) -> bytes:
        samples = []
        for seed, indices in guess:
            if seed is not None:
                seed_generators(seed)
            samples.append(load(self._dataset, indices))
        return pickle.dumps(samples, protocol=5)


def _only(batch: list[bytes]) -> bytes:
    return batch[0]


def load(dataset: MapStyleDataset, indices: Sequence[int] | NDArray[np.int64]) -> list[Any]:
    """Return the samples at `indices`, with one call where the data set has `__getitems__`."""
    plain = [int(index) for index in indices]
    if hasattr(dataset, "__getitems__"):
        samples: list[Any] = dataset.__getitems__(plain)
        return samples
    return [dataset[index] for index in plain]
