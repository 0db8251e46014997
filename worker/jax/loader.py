"""JAX: a loader that gives each worker exactly its slice of every batch, as NumPy arrays."""

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from idl.errors import InvalidRequestError
from worker.data.micro_batches import MicroBatch
from worker.data.randomness import SeededLoading, seed_generators
from worker.data.slices import Slices
from worker.jax.measured_batch import MeasuredBatch
from worker.own_session import own_session
from worker.session import Session


class DataLoader:
    """An iterable over the training data, one pass for each epoch of the job.

    Batches vary in size from iteration to iteration, as the manager plans them. `jax.jit` would compile a
    step again for each size: `worker.jax.gradient.value_and_grad` does not. Where this worker has no part in
    a batch (the last of an epoch may be too small), it gets a sample whose gradient has no weight. A worker
    that joins a running job skips the epochs that are done.

    Args:
        data: A pytree of arrays, (samples, ...) each, such as `(images, labels)`; or a map-style data set,
            with a length and an item, itself a pytree, for each index.
        batch_size: Samples of a whole batch, over all workers; or these by the first epoch that has them,
            such as `{0: 64, 30: 256}`.
        shuffle: Whether each epoch has a permutation of its own.
        seed: Seed of the permutations.
        drop_last: Whether an epoch's last, smaller batch is left out.
        micro_batch: Samples of a micro-batch. With it, `worker.jax.gradient.value_and_grad` goes through what
            is yielded, and the parameters do not depend on the number of workers and their shares, with batch
            normalisation, dropout and random augmentation, too. None: a worker's part of a batch is one batch
            of samples.
        session: The session with the services; by default this process's.

    Raises:
        InvalidRequestError: A value is not allowed, or the session has a loader already.
    """

    def __init__(
        self,
        data: Any,
        batch_size: int | Mapping[int, int] = 1,
        *,
        session: Session | None = None,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        micro_batch: int | None = None,
    ) -> None:
        leaves = jax.tree.leaves(data)
        self._arrays = bool(leaves) and all(isinstance(leaf, np.ndarray | jax.Array) for leaf in leaves)
        if self._arrays:
            shapes = [leaf.shape for leaf in leaves]
            if len({shape[:1] for shape in shapes}) > 1 or not shapes[0]:
                raise InvalidRequestError(f"arrays of shapes {shapes}: all must have as many rows")
            # Once, since indexing an array on a device would compile again for each batch size.
            data = jax.tree.map(np.asarray, data)
            samples = shapes[0][0]
        elif hasattr(data, "__len__") and hasattr(data, "__getitem__") and jax.tree_util.all_leaves([data]):
            samples = len(data)
        else:
            raise InvalidRequestError(
                f"data {type(data).__name__}: must be a pytree of arrays, or map-style, with __len__ and "
                f"__getitem__"
            )
        session = session or own_session()
        self.slices = Slices(
            samples,
            batch_size,
            session,
            shuffle=shuffle,
            seed=seed,
            drop_last=drop_last,
            micro_batch=micro_batch,
        )
        self.session = session
        self._seeded = SeededLoading(data, seed_generators, session.log_fields)
        self.data = data
        self.batch_size = self.slices.spec.total_batch_size
        self.batch: MeasuredBatch | None = None

    def __len__(self) -> int:
        """Return the number of batches of the current epoch; it changes if the batch size does."""
        return len(self.slices)

    @property
    def progress(self) -> float:
        """The progress before the present batch, in batches of the first size; see `Slices.progress`."""
        return self.slices.progress

    def __iter__(self) -> Iterator[Any]:
        """Yield this worker's parts of the next epoch's batches: pytrees of NumPy arrays, (count, ...) each.

        In a job with micro-batches, only `value_and_grad` looks into what is yielded.

        Raises:
            InvalidRequestError: The last epoch was not finished, or an iteration was not.
            EvenpaceError: As `Session.join` and `Session.finish_iteration` raise.
        """
        for part in self.slices:
            if part.micro_batches:
                measures = self.session.norms.of_micro_batches
                self.batch = MeasuredBatch(part, self._load_micro_batch, measures)
                yield self.batch
                continue
            with self.session.tally.phase("load", part.assignment):
                batch = self._load(part.indices)
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """Return the job's position, for a checkpoint: a pytree of numbers and NumPy arrays.

        See `worker.data.slices.Slices.state_dict`.
        """
        state = self.slices.state_dict()
        return state | {"learned": np.frombuffer(state["learned"], dtype=np.uint8)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a checkpoint, before the training begins; see `Slices.load_state_dict`.

        Args:
            state: The dictionary of `state_dict`; numbers may have become arrays without a dimension.
        """
        plain = jax.tree.map(lambda leaf: leaf if np.ndim(leaf) else np.asarray(leaf).item(), state)
        self.slices.load_state_dict(plain | {"learned": np.asarray(plain["learned"]).tobytes()})

    def _load_micro_batch(self, part: MicroBatch) -> Any:
        """Return a micro-batch, with random numbers of its own."""
        with self.session.tally.phase("load", self.session.assignment):
            return self._seeded.load(part, lambda: self._load(part.indices))

    def _load(self, indices: NDArray[np.int64]) -> Any:
        if self._arrays:
            return jax.tree.map(lambda array: array[indices], self.data)
        samples = [self.data[int(index)] for index in indices]
        return jax.tree.map(lambda *leaves: np.stack(leaves), *samples)
