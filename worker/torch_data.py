"""PyTorch: a loader that gives each worker exactly its slice of every batch."""

import pickle
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch.utils.data as torch_data
from numpy.typing import NDArray

from batchsize_manager.plan import Assignment, JobSpec, permutation
from rpc.errors import InvalidRequestError
from worker.session import Session


class MapStyleDataset(Protocol):
    """What can be trained on: a data set with a length and an item for each index."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Any: ...


class DataLoader:
    """Takes the place of `torch.utils.data.DataLoader` for the training data.

    Each pass over it is one epoch of the job. Batches vary in size from iteration to iteration, as the
    manager plans them; where this worker has no part in a batch (the last of an epoch may be too small),
    it takes part in the barrier and goes on to the next. A worker that joins a running job passes over
    the epochs that are done. So does one that comes too late with backup workers, and over batches.

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
        session: With the services; the one that `evenpace worker` made, unless given.

    Raises:
        InvalidRequestError: A value is not allowed, or the session has a loader already.
    """

    def __init__(
        self,
        dataset: MapStyleDataset,
        batch_size: int,
        *,
        session: Session,
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
        try:
            self._spec = JobSpec(len(dataset), batch_size, seed, shuffle, drop_last)
        except ValueError as error:
            raise InvalidRequestError(str(error)) from error
        session.declare(self._spec)
        self.session = session
        self.dataset = dataset
        self.batch_size = batch_size
        self._collate = collate_fn
        self._fetch: _Fetcher = (
            _Prefetching(session, dataset, self._spec, num_workers, prefetch_factor, worker_init_fn)
            if num_workers
            else _Direct(dataset)
        )
        self._epochs_begun = 0

    def __len__(self) -> int:
        """How many batches an epoch has."""
        return self._spec.iterations_per_epoch

    def __iter__(self) -> Iterator[Any]:
        """This worker's parts of the next epoch's batches, as `collate_fn` makes them.

        Raises:
            InvalidRequestError: The last epoch was not finished.
            EvenpaceError: As `Session.join` and `Session.finish_iteration` raise.
        """
        epoch = self._epochs_begun
        self._epochs_begun += 1
        assignment = self.session.join()
        if assignment.epoch < epoch:
            raise InvalidRequestError(
                f"epoch {epoch} begins, but iteration {assignment.iteration} of epoch {assignment.epoch} "
                f"is not finished: go through all batches, and call optimizer.step() for each"
            )
        if assignment.epoch > epoch:
            return
        order = permutation(self._spec, epoch)
        self._fetch.begin(epoch, order)
        while assignment.epoch == epoch:
            self.session.stopwatch.start()
            if assignment.count:
                samples = self._fetch.samples(assignment, order)
                yield self._collate(samples)
            else:
                self._fetch.samples(assignment, order)
                self.session.finish_iteration()
            finished, assignment = assignment, self.session.join()
            if assignment.iteration == finished.iteration:
                raise InvalidRequestError(
                    f"iteration {finished.iteration} was not finished: call optimizer.step() for each batch"
                )


class _Fetcher(Protocol):
    def begin(self, epoch: int, order: NDArray[np.int64]) -> None: ...

    def samples(self, assignment: Assignment, order: NDArray[np.int64]) -> list[Any]: ...


class _Direct:
    """Loads samples when they are needed."""

    def __init__(self, dataset: MapStyleDataset) -> None:
        self._dataset = dataset

    def begin(self, epoch: int, order: NDArray[np.int64]) -> None:
        """Nothing to prepare."""

    def samples(self, assignment: Assignment, order: NDArray[np.int64]) -> list[Any]:
        return load(self._dataset, order[assignment.start : assignment.start + assignment.count])


class _Prefetching:
    """Lets processes load ahead what this worker will *probably* get, and loads the difference itself.

    A loading process is asked for samples before their plan exists. So the part of the last assignment in
    its batch is taken as a guess for the next ones; once a plan is there, samples that were guessed right
    are at hand, the others are loaded here. Plans change little, so few are.
    """

    def __init__(
        self,
        session: Session,
        dataset: MapStyleDataset,
        spec: JobSpec,
        num_workers: int,
        prefetch_factor: int,
        worker_init_fn: Callable[[int], None] | None,
    ) -> None:
        self._session = session
        self._dataset = dataset
        self._spec = spec
        # Iteration and slice of the batches that were asked for, oldest first.
        self._guesses: deque[tuple[int, range]] = deque()
        self._epoch = 0
        self._order = np.empty(0, dtype=np.int64)
        self._loaded: Iterator[bytes] = iter(())
        # Samples come pickled: as tensors, each would take a file descriptor of its own.
        self._loader: torch_data.DataLoader[bytes] = torch_data.DataLoader(
            _Pickled(dataset),
            batch_sampler=_Guesses(self._guess_epoch),
            collate_fn=_only,
            num_workers=num_workers,
            prefetch_factor=prefetch_factor,
            worker_init_fn=worker_init_fn,
            persistent_workers=True,
        )

    def begin(self, epoch: int, order: NDArray[np.int64]) -> None:
        """Start to load the epoch, from the session's current iteration on."""
        self._epoch, self._order = epoch, order
        self._guesses.clear()
        self._loaded = iter(self._loader)

    def samples(self, assignment: Assignment, order: NDArray[np.int64]) -> list[Any]:
        iteration, guess = self._guesses.popleft()
        loaded = next(self._loaded)
        while iteration < assignment.iteration:  # this worker has skipped some
            iteration, guess = self._guesses.popleft()
            loaded = next(self._loaded)
        at_hand = dict(zip(guess, pickle.loads(loaded), strict=True))
        wanted = range(assignment.start, assignment.start + assignment.count)
        missing = [position for position in wanted if position not in at_hand]
        if missing:
            at_hand.update(zip(missing, load(self._dataset, order[missing]), strict=True))
        return [at_hand[position] for position in wanted]

    def _guess_epoch(self) -> Iterator[list[list[int]]]:
        """For each iteration that the epoch has left, the indices of the samples guessed for it."""
        iteration = self._session.join().iteration
        while iteration < (self._epoch + 1) * self._spec.iterations_per_epoch:
            latest = self._session.join()
            iteration = max(iteration, latest.iteration)
            _, start, total = self._spec.batch(iteration)
            _, latest_start, latest_total = self._spec.batch(latest.iteration)
            first = round((latest.start - latest_start) / latest_total * total)
            count = round(latest.count / latest_total * total)
            guess = range(start + first, min(start + first + count, start + total))
            self._guesses.append((iteration, guess))
            yield [self._order[guess.start : guess.stop].tolist()]
            iteration += 1


class _Guesses:
    """A batch sampler for torch: each pass asks `source` anew."""

    def __init__(self, source: Callable[[], Iterator[list[list[int]]]]) -> None:
        self._source = source

    def __iter__(self) -> Iterator[list[list[int]]]:
        return self._source()


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
