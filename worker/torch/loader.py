"""PyTorch: a loader that gives each worker exactly its slice of every batch."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Protocol

import torch
import torch.utils.data as torch_data
from numpy.typing import ArrayLike
from torch.utils.data._utils.pin_memory import pin_memory as pin_memory_of

from idl.errors import InvalidRequestError
from worker.data import loader
from worker.data.slices import Slice
from worker.data.source import Source, load
from worker.session import Session
from worker.torch.micro_batches import Accumulation, SlicedBatch
from worker.torch.prefetching import PrefetchingSource
from worker.torch.randomness import seed_generators
from worker.weights import WEIGHT_LIMIT, Weigh


class MapStyleDataset(Protocol):
    """A data set with a length and an item for each index."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Any: ...


class Loader(loader.Loader):
    """Any evenpace loader for PyTorch."""

    # What sums up micro-batches; functions that exchange gradients set it.
    accumulation: Accumulation | None = None
    _advice = "call optimizer.step() for each batch, which a GradScaler leaves out after an overflow"
    _seed_generators = staticmethod(seed_generators)

    def __iter__(self) -> Iterator[Any]:
        for batch in super().__iter__():
            yield batch
            if self.session.exchange.loader_finishes and self.accumulation is not None:
                self.accumulation.check()

    def _sliced(self, part: Slice) -> SlicedBatch:
        return SlicedBatch(part, self._load, self.accumulation)


class _Pinned:
    """Function that makes batches, and copies them into page-locked memory.

    Args:
        collate: Makes a batch from a list of samples.
    """

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self._collate = collate

    def __call__(self, samples: list[Any]) -> Any:
        return pin_memory_of(self._collate(samples))


# Arguments of torch's loader that this one lacks, with their defaults there.
_OTHERS: Mapping[str, Any] = {
    "sampler": None,
    "batch_sampler": None,
    "timeout": 0,
    "multiprocessing_context": None,
    "pin_memory_device": "",
    "in_order": True,
}


def _check_others(given: Mapping[str, Any]) -> None:
    """Check that further arguments have the defaults of torch's loader.

    Raises:
        TypeError: One is no argument of it.
        InvalidRequestError: One has another value.
    """
    for name, value in given.items():
        if name not in _OTHERS:
            raise TypeError(f"DataLoader() got an unexpected keyword argument {name!r}")
        if value != _OTHERS[name]:
            instead = "leave it out"
            if "sampler" in name:
                instead = (
                    "the manager plans which worker has which samples: give shuffle=, seed= and drop_last=, "
                    "or a data set that chooses its samples itself, such as torch.utils.data.Subset"
                )
            raise InvalidRequestError(f"{name}={value!r}: an evenpace loader has none; {instead}")


class DataLoader(Loader):
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
        generator: Its initial seed is that of the permutations, in place of `seed`, and the same on all
            workers; with `num_workers` it seeds the loading processes, as in `torch.utils.data.DataLoader`.
        drop_last: Whether an epoch's last, smaller batch is left out.
        micro_batch: Samples of a micro-batch. With it, what it yields is gone through by
            `evenpace.torch.micro_batches`, and the parameters do not depend on the number of workers and
            their shares, with batch normalisation, dropout and random augmentation, too. None: a worker's
            part of a batch is one batch of samples.
        num_workers: Processes that load samples ahead of time; 0 loads them in this process when needed.
        prefetch_factor: Batches that each of them loads ahead.
        persistent_workers: Whether they go on from epoch to epoch, with the data set as it was at first.
        pin_memory: Whether batches are in page-locked memory, for faster copies to a GPU; without one it has
            no effect.
        collate_fn: Makes a batch from a list of samples.
        worker_init_fn: Called with the process's number in each loading process.
        compare_samples: Whether workers that join compare numbers of four samples, loaded three times, to see
            that they have the same data set; random samples are left out.
        weight: For a loss that is no mean over samples: a function from a batch, or a micro-batch, to what
            its loss is a mean over, such as `lambda batch: (batch["labels"] != -100).sum()`; or "loss", where
            the loss is made by `evenpace.torch.mean`. The same on all workers. None: a mean over samples.
        weight_limit: The most that a sample may weigh where sums are exact (--exact).
        cost: What each sample costs to compute, such as its tokens, in any unit: numbers from 0 on,
            (samples,), or a function of a sample's index, the same on all workers. Batches are then split by
            cost in place of samples; the result does not depend on it. None: all samples cost the same.
        sort: Whether the samples of each batch are sorted by cost, for batches that are padded to their
            longest sample: parts of one length have less padding, and are split by what they cost with it.
            The batches, and so the result, are the same. It takes `cost`.
        session: The session with the services; by default this process's.
        others: Further arguments of `torch.utils.data.DataLoader`, with its own defaults alone.

    Raises:
        InvalidRequestError: A value is not allowed, or the session has a loader already.
    """

    def __init__(
        self,
        dataset: MapStyleDataset,
        batch_size: int | Mapping[int, int] = 1,
        *,
        session: Session | None = None,
        shuffle: bool | None = None,
        seed: int = 0,
        generator: torch.Generator | None = None,
        drop_last: bool = False,
        micro_batch: int | None = None,
        num_workers: int = 0,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory: bool = False,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        worker_init_fn: Callable[[int], None] | None = None,
        compare_samples: bool = True,
        weight: Weigh | str | None = None,
        weight_limit: int = WEIGHT_LIMIT,
        cost: ArrayLike | Callable[[int], float] | None = None,
        sort: bool = False,
        **others: Any,
    ) -> None:
        _check_others(others)
        prefetch_factor = 2 if prefetch_factor is None else prefetch_factor
        collate_fn = collate_fn or torch_data.default_collate
        if isinstance(dataset, torch_data.IterableDataset) or not hasattr(dataset, "__getitem__"):
            raise InvalidRequestError(
                f"dataset {type(dataset).__name__}: must be map-style, with __len__ and __getitem__"
            )
        if num_workers < 0 or prefetch_factor < 1:
            raise InvalidRequestError(
                f"num_workers {num_workers}, prefetch_factor {prefetch_factor}: must be at least 0 and 1"
            )
        if generator is not None:
            if seed:
                raise InvalidRequestError(f"seed {seed}: give a seed or a generator, not both")
            seed = generator.initial_seed()
        if pin_memory and torch.cuda.is_available():
            collate_fn = _Pinned(collate_fn)
        super().__init__(
            PrefetchingSource(
                dataset,
                collate_fn,
                num_workers,
                prefetch_factor,
                worker_init_fn,
                generator=generator,
                persistent_workers=persistent_workers,
            )
            if num_workers
            else Source(dataset, len(dataset), partial(load, dataset), collate_fn),
            batch_size,
            session,
            shuffle=bool(shuffle),
            seed=seed,
            drop_last=drop_last,
            micro_batch=micro_batch,
            compare_samples=compare_samples,
            weight=weight,
            weight_limit=weight_limit,
            cost=cost,
            sort=sort,
        )

    @property
    def dataset(self) -> Any:
        """The data set; a job has one, of one size."""
        return self.source.drawing["dataset"]

    def __iter__(self) -> Iterator[Any]:
        size, now = len(self.source), len(self.dataset)
        if now != size:
            raise InvalidRequestError(
                f"the data set has {now} samples, and had {size} when the loader was made, as a job has "
                f"throughout: put others in the place of samples, or begin another job (`--job`) with the "
                f"parameters of a checkpoint"
            )
        return super().__iter__()
