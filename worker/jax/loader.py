"""JAX: a loader that gives each worker exactly its slice of every batch, as NumPy arrays."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from idl.errors import InvalidRequestError
from worker.data.loader import Loader
from worker.data.randomness import seed_generators
from worker.data.slices import Slice
from worker.data.source import Source, load
from worker.jax.measured_batch import MeasuredBatch
from worker.session import Session
from worker.weights import Weigh


class DataLoader(Loader):
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
        compare_samples: Whether workers that join compare numbers of four samples, loaded three times, to see
            that they have the same data set; random samples are left out.
        session: The session with the services; by default this process's.
        weight: A function from a batch, or a micro-batch, to what its loss is a mean over, such as the tokens
            that count; or "loss", where the loss of `worker.jax.gradient.value_and_grad` says so by returning
            losses with weights; where both say it, they must agree. The same on all workers. None: a mean
            over samples.

    Raises:
        InvalidRequestError: A value is not allowed, or the session has a loader already.
    """

    _seed_generators = staticmethod(seed_generators)
    _advice = "call optimizer.step(gradient) for each batch"
    _weighted_loss = (
        "that of an evenpace.jax.value_and_grad which distribute was given, whose loss_fn returns "
        "(losses, weights)"
    )

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
        compare_samples: bool = True,
        weight: Weigh | str | None = None,
    ) -> None:
        self.data, source = _source(data)
        super().__init__(
            source,
            batch_size,
            session,
            shuffle=shuffle,
            seed=seed,
            drop_last=drop_last,
            micro_batch=micro_batch,
            compare_samples=compare_samples,
            weight=weight,
        )
        self.batch: MeasuredBatch | None = None

    def state_dict(self) -> dict[str, Any]:
        """Return the job's position, for a checkpoint: a pytree of numbers and NumPy arrays.

        See `worker.data.slices.Slices.state_dict`.
        """
        state = super().state_dict()
        return state | {"learned": np.frombuffer(state["learned"], dtype=np.uint8)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a checkpoint, before the training begins; see `Slices.load_state_dict`.

        Args:
            state: The dictionary of `state_dict`; numbers may have become arrays without a dimension.
        """
        plain = jax.tree.map(lambda leaf: leaf if np.ndim(leaf) else np.asarray(leaf).item(), state)
        super().load_state_dict(plain | {"learned": np.asarray(plain["learned"]).tobytes()})

    def _sliced(self, part: Slice) -> MeasuredBatch:
        session = self.session
        self.batch = MeasuredBatch(part, self._load, session.norms.of_micro_batches, session.weights)
        return self.batch


def _source(data: Any) -> tuple[Any, Source]:
    """Return data, with its arrays on the host, and the source of its samples."""
    leaves = jax.tree.leaves(data)
    if leaves and all(isinstance(leaf, np.ndarray | jax.Array) for leaf in leaves):
        shapes = [leaf.shape for leaf in leaves]
        if len({shape[:1] for shape in shapes}) > 1 or not shapes[0]:
            raise InvalidRequestError(f"arrays of shapes {shapes}: all must have as many rows")
        # Once, since indexing an array on a device would compile again for each batch size.
        arrays = jax.tree.map(np.asarray, data)
        return arrays, Source(arrays, shapes[0][0], partial(_rows, arrays), lambda batch: batch)
    if hasattr(data, "__len__") and hasattr(data, "__getitem__") and jax.tree_util.all_leaves([data]):
        return data, Source(data, len(data), partial(load, data), _stack)
    raise InvalidRequestError(
        f"data {type(data).__name__}: must be a pytree of arrays, or map-style, with __len__ and __getitem__"
    )


def _rows(arrays: Any, indices: NDArray[np.int64]) -> Any:
    return jax.tree.map(lambda array: array[indices], arrays)


def _stack(samples: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *samples)
