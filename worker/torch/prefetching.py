"""PyTorch: samples that processes load ahead of the plans of the iterations that they are for."""

import functools
import os
import pickle
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.utils.data as torch_data

from idl.plan import Assignment
from worker.data.micro_batches import Draws, MicroBatch
from worker.data.slices import Slice, Slices
from worker.data.source import Source, load
from worker.parent import end_with_parent
from worker.torch.randomness import seed_generators

# Of a slice that may be needed: a seed, and indices, for each of its micro-batches; or None, and all indices.
_APART_SECONDS = 10.0  # for a few samples by which data sets are compared
_Guess = list[tuple[int | None, list[int]]]


class PrefetchingSource(Source):
    """A map-style data set, of which processes load what this worker will *probably* get, ahead of time.

    Samples that were not guessed are loaded in this process. Plans change little, so these are few.

    Args:
        dataset: The data set.
        collate: Makes a batch from a list of samples.
        num_workers: Loading processes, at least 1.
        prefetch_factor: Batches that each of them loads ahead.
        worker_init_fn: Called with the process's number in each of them.
        generator: Generator of their seeds; None for torch's own.
        persistent_workers: Whether they go on from epoch to epoch.
    """

    def __init__(
        self,
        dataset: Any,
        collate: Callable[[list[Any]], Any],
        num_workers: int,
        prefetch_factor: int,
        worker_init_fn: Callable[[int], None] | None,
        *,
        generator: torch.Generator | None = None,
        persistent_workers: bool = False,
    ) -> None:
        super().__init__(dataset, len(dataset), functools.partial(load, dataset), collate)
        self._guesses = _Guesses()
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
            generator=generator,
            persistent_workers=persistent_workers,
        )

    def load_apart(self, wanted: Sequence[tuple[int, int]]) -> Iterator[Any]:
        """Yield samples from a process of their own: this one must not open what others open for themselves.

        Args:
            wanted: The seed and the index of each.
        """
        loader = torch_data.DataLoader(
            _Pickled(self.drawing["dataset"]),
            batch_sampler=[[[(seed, [index]) for seed, index in wanted]]],
            collate_fn=_only,
            num_workers=1,
            worker_init_fn=self._loader.worker_init_fn,
            generator=torch.Generator(),  # from which it draws, in place of the script's
            timeout=_APART_SECONDS,
        )
        yield from pickle.loads(next(iter(loader)))

    def begin(self, slices: Slices) -> None:
        """Start to load with the next slice, whose epoch is not known yet."""
        self._guesses.slices, self._guesses.epoch = slices, -1

    def samples(self, part: Slice | MicroBatch) -> list[Any]:
        """Return the samples of the slice that was taken, or of a micro-batch of it, whose seed was set."""
        seed = part.seed(Draws.LOADING) if isinstance(part, MicroBatch) else None
        wanted = part.indices.tolist()
        at_hand = self._at_hand.pop(seed, {})
        missing = [index for index in wanted if index not in at_hand]
        if seed is not None and list(at_hand) != wanted:
            missing = wanted  # all at once, as their random numbers follow each other
        if missing:
            at_hand = at_hand | dict(zip(missing, self.load(missing), strict=True))
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
    """

    slices: Slices  # the slices of the job's batches

    def __init__(self) -> None:
        self.epoch = -1  # the current epoch
        # Iteration, and seeds and indices, of the batches that were asked for, oldest first.
        self.asked: deque[tuple[int, _Guess]] = deque()

    def __iter__(self) -> Iterator[list[_Guess]]:
        session, spec = self.slices.session, self.slices.spec
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
            part = self.slices.slice_of(
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
    info = torch_data.get_worker_info()
    assert info is not None
    # The script's own, although earlier versions of PyTorch refuse plain assignments.
    object.__setattr__(info, "dataset", info.dataset.samples_of)  # type: ignore[attr-defined]
    if user_init is not None:
        user_init(number)


class _Pickled(torch_data.Dataset[bytes]):
    """A data set for loading processes, whose items are the pickled samples of lists of indices.

    Args:
        samples_of: The script's data set.
    """

    def __init__(self, samples_of: Any) -> None:
        self.samples_of = samples_of

    def __getitem__(self, guess: _Guess) -> bytes:
        samples = []
        for seed, indices in guess:
            if seed is not None:
                seed_generators(seed)
            samples.append(load(self.samples_of, indices))
        return pickle.dumps(samples, protocol=5)


def _only(batch: list[bytes]) -> bytes:
    return batch[0]
