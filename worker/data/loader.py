"""A loader that gives each worker exactly its slice of every batch: the part that all frameworks share.

This module knows the session and the plan, and no framework.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from worker.data.fingerprints import fingerprints
from worker.data.micro_batches import MicroBatch
from worker.data.randomness import SeededLoading
from worker.data.sliced_batch import SlicedBatch
from worker.data.slices import Slice, Slices
from worker.data.source import Source
from worker.own_session import own_session
from worker.session import Session
from worker.weights import WEIGHT_LIMIT, Weigh


class Loader(ABC):
    """An iterable over this worker's parts of the batches, one pass for each epoch of the job.

    Args:
        source: The samples.
        batch_size: As `Slices` takes it.
        session: The session with the services; None for this process's.
        compare_samples: Whether workers that join compare a few samples.
        weight: A function from a batch, or a micro-batch, to what its loss is a mean over; or "loss", where
            the loss says so; None for a mean over samples.
        weight_limit: The most that a sample may weigh where sums are exact.
        options: Further options of `Slices`.

    Raises:
        InvalidRequestError: A value is not allowed, or the session has a loader already.
    """

    _advice = "call optimizer.step() for each batch"
    """What a loop has to do for each batch, for errors; others for other frameworks."""

    _weighted_loss = "evenpace.torch.mean(losses, mask)"
    """Which losses say what they are means over, for errors; others for other frameworks."""

    def __init__(
        self,
        source: Source,
        batch_size: int | Mapping[int, int],
        session: Session | None,
        *,
        compare_samples: bool = False,
        weight: Weigh | str | None = None,
        weight_limit: int = WEIGHT_LIMIT,
        **options: Any,
    ) -> None:
        self.session = session or own_session()  # the session with the services
        self.source = source
        # This worker's parts of the batches.
        self.slices = Slices(
            len(source),
            batch_size,
            self.session,
            advice=self._advice,
            weight_limit=self.session.weights.declare(weight, weight_limit, self._weighted_loss),
            **options,
        )
        if compare_samples:
            self.session.training.samples = partial(fingerprints, source)
        self._has_warned = False
        self._seeded = SeededLoading(source, self._seed_generators, self.session.log)

    def __len__(self) -> int:
        """Return the number of batches of the current epoch; it changes if the batch size does."""
        return len(self.slices)

    @property
    def batch_size(self) -> int:
        """The samples of a whole batch, over all workers."""
        return self.slices.spec.total_batch_size

    @property
    def progress(self) -> float:
        """The progress before the present batch, in batches of the first size; see `Slices.progress`."""
        return self.slices.progress

    def __iter__(self) -> Iterator[Any]:
        """Yield this worker's parts of the next epoch's batches.

        In a job with micro-batches, the framework's `micro_batches`, or JAX's `value_and_grad`, makes them of
        what is yielded.

        Raises:
            InvalidRequestError: The last epoch was not finished, or an iteration or a micro-batch was not; or
                a stream does not have `size` samples.
            EvenpaceError: As `Session.join` and `Session.finish_iteration` raise.
        """
        self.source.begin(self.slices)
        for part in self.slices:
            with self.session.meter.tally.phase("load", part.assignment):
                self.source.take(part)
                batch = None if part.micro_batches else self.source.collate(self.source.samples(part))
                self._check_size(batch, len(part.indices))
            if not part.micro_batches:
                self.session.weights.weigh(batch)
            yield self._sliced(part) if part.micro_batches else batch

    def _check_size(self, batch: Any, count: int) -> None:
        """Warn, once, if no array of a batch has a dimension of the slice's samples."""
        shapes = list(_shapes(batch))
        if shapes and not self._has_warned and not any(count in shape for shape in shapes):
            self._has_warned = True
            self.session.log.of(__name__).warning(
                "a batch of %d samples was made into arrays of shapes %s: its gradient is weighted by %d "
                "samples, so let collate_fn keep as many, such as others in place of those that are damaged, "
                "or leave them out of the data set before the loader is made",
                count,
                ", ".join(map(str, shapes[:3])),
                count,
            )

    def epochs(self, number: int) -> Iterator[int]:
        """Yield the epochs that are still to be trained, of `number`; see `Slices.epochs`.

        for epoch in loader.epochs(15):
            for batch in loader:
                ...
        """
        return self.slices.epochs(number)

    def state_dict(self) -> dict[str, Any]:
        """Return the job's position, for a checkpoint; see `worker.data.slices.Slices.state_dict`."""
        return self.slices.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a checkpoint, before the training begins; see `Slices.load_state_dict`."""
        self.slices.load_state_dict(state)

    @staticmethod
    @abstractmethod
    def _seed_generators(seed: int) -> None:
        """Seed the generators that a script may draw from."""

    @abstractmethod
    def _sliced(self, part: Slice) -> SlicedBatch:
        """Return what is yielded for a slice in micro-batches, which `_load` loads."""

    def _load(self, part: MicroBatch) -> Any:
        """Return a micro-batch, with random numbers of its own."""
        with self.session.meter.tally.phase("load", self.session.assignment):
            batch = self._seeded.load(part)
            self._check_size(batch, len(part.indices))
        self.session.weights.weigh(batch)
        return batch


def _shapes(batch: Any) -> Iterator[tuple[int, ...]]:
    """Yield the shapes of the arrays in a batch of lists and dictionaries; other objects are left out."""
    if isinstance(batch, dict):
        batch = list(batch.values())
    if isinstance(batch, list | tuple):
        for one in batch:
            yield from _shapes(one)
    elif len(shape := tuple(getattr(batch, "shape", ()))):
        yield shape
