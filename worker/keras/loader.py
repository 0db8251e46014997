"""Keras on TensorFlow: a loader that gives each worker exactly its slice of every batch.

It serves custom training loops and `model.fit`. It knows no optimiser.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.trainers.data_adapters.data_adapter import DataAdapter  # which `fit` accepts unchanged
from numpy.typing import NDArray

from idl.errors import InvalidRequestError
from worker.data.loader import Loader
from worker.data.slices import Slice
from worker.data.source import Source, load
from worker.keras.micro_batches import Accumulation, SlicedBatch
from worker.keras.randomness import seed_generators
from worker.session import Session
from worker.weights import WEIGHT_LIMIT, Weigh


class DataLoader(Loader, DataAdapter):  # type: ignore[misc]  # Keras has no types
    """The training data, for custom training loops and for `model.fit`.

    Each pass over it is one epoch of the job. Batches vary in size from iteration to iteration, as the
    manager plans them; where this worker has no part in a batch (the last of an epoch may be too small),
    it gets a sample whose gradient has no weight. A worker that joins a running job skips the epochs that are
    done.

    In a job with micro-batches, `fit` goes through them as before, and a loop of one's own by
    `evenpace.keras.micro_batches`.

    A batch has the structure of the data: (x, y) or (x, y, sample_weight), each an array or dictionaries and
    tuples of arrays; without a tuple where there is only one. Arrays become tensors, floating ones in Keras's
    floatx.

    Args:
        data: Arrays of the same length, in any structure, which can be indexed by a sequence of indices; or
            one map-style data set, whose samples are stacked.
        batch_size: Samples of a whole batch, over all workers; or these by the first epoch that has them,
            such as `{0: 64, 30: 256}`.
        session: The session with the services; by default this process's.
        shuffle: Whether each epoch has a permutation of its own.
        seed: Seed of the permutations.
        drop_last: Whether an epoch's last, smaller batch is left out.
        micro_batch: Samples of a micro-batch. With it, the parameters do not depend on the number of workers
            and their shares, with batch normalisation, dropout and random augmentation, too. None: a worker's
            part of a batch is one batch of samples.
        compare_samples: Whether workers that join compare numbers of four samples, loaded three times, to see
            that they have the same data set; random samples are left out.
        weight: A function from a batch, or a micro-batch, to what its loss is a mean over, such as the
            elements that are not masked, or the sum of the sample weights; or "loss", where the model is
            compiled with a loss of Keras's, and trained by `fit`, which says so itself; where both say it,
            they must agree. The same on all workers. None: a mean over samples, as Keras's losses are by
            default, sample weights and class weights or not.
        weight_limit: The most that a sample may weigh where sums are exact.

    Attributes:
        session: The session with the services.
        slices: This worker's parts of the batches.
        accumulation: The mean over a slice's micro-batches; an optimiser's `apply` adds to it.
        resumed_at: The iteration that a checkpoint resumes at; 0 without one.
        steps: Steps that `fit` takes in the present epoch, its batches when it began; 0 before that.

    Raises:
        InvalidRequestError: A value is not allowed, or the session has a loader already.
    """

    _seed_generators = staticmethod(seed_generators)
    _advice = (
        "train on each batch, by model.fit(loader) of a model that was compiled and then given to "
        "evenpace.keras.distribute, or by apply_gradients of such an optimiser in a loop of your own; for "
        "model.evaluate and model.predict take other data than this loader"
    )
    _weighted_loss = (
        "a keras.Loss that the model is compiled with, whose `call` gives a loss for each element, in "
        "model.fit(loader)"
    )

    def __init__(
        self,
        *data: Any,
        batch_size: int | Mapping[int, int] = 32,
        session: Session | None = None,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        micro_batch: int | None = None,
        compare_samples: bool = True,
        weight: Weigh | str | None = None,
        weight_limit: int = WEIGHT_LIMIT,
    ) -> None:
        super().__init__(
            _source(data),
            batch_size,
            session,
            shuffle=shuffle,
            seed=seed,
            drop_last=drop_last,
            micro_batch=micro_batch,
            compare_samples=compare_samples,
            weight=weight,
            weight_limit=weight_limit,
        )
        self.accumulation = Accumulation(self.session)
        self.resumed_at = 0
        self.steps = 0

    @property
    def signature(self) -> tuple[Any, ...]:
        """Return the signature of a batch of any size, for `tf.function(input_signature=...)`."""
        return self.spec if isinstance(self.spec, tuple) else (self.spec,)

    @property
    def spec(self) -> Any:
        """Return the structure of a batch, with a `tf.TensorSpec` for each array."""
        return keras.tree.map_structure(
            lambda part: tf.TensorSpec([None, *part.shape[1:]], part.dtype), self.first()
        )

    def first(self) -> Any:
        """Return the data set's first sample, as a batch of one."""
        return self.source.collate(self.source.load(np.zeros(1, dtype=np.int64)))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a checkpoint, before the training begins; see `Slices.load_state_dict`."""
        super().load_state_dict(state)
        self.resumed_at = int(state["iteration"])

    # -- keras.src.trainers.data_adapters.DataAdapter, which `fit` uses

    def get_tf_dataset(self) -> "DataLoader":
        """Return this loader: a tf.data.Dataset would ask for batches ahead of their plans."""
        return self

    @property
    def num_batches(self) -> int:
        """Return the number of batches of the current epoch, as far as is known."""
        return len(self)

    def _sliced(self, part: Slice) -> SlicedBatch:
        return SlicedBatch(part, self._load, self.accumulation)


def _source(data: tuple[Any, ...]) -> Source:
    """Return the source of the samples of arrays of the same length, in a structure, or of a data set."""
    whole = data if len(data) > 1 else data[0] if data else ()
    if _is_map_style(whole):
        return Source(whole, len(whole), partial(load, whole), _stack)
    leaves = keras.tree.flatten(whole)
    if not leaves or not all(getattr(leaf, "shape", ()) for leaf in leaves):
        kinds = ", ".join(type(part).__name__ for part in data)
        raise InvalidRequestError(
            f"data of {kinds or 'nothing'}: give arrays, in tuples or dictionaries if there are several, "
            f"or one map-style data set, with __len__ and __getitem__"
        )
    arrays = keras.tree.map_structure(_indexable, whole)
    lengths = {len(leaf) for leaf in keras.tree.flatten(arrays)}
    if len(lengths) > 1:
        raise InvalidRequestError(f"arrays of {sorted(lengths)} samples: they must be of the same length")
    return Source(whole, lengths.pop(), partial(_rows, arrays), _tensors)


def _is_map_style(data: Any) -> bool:
    """Return whether data is a data set of samples; Keras's own data sets are of whole batches."""
    return (
        hasattr(data, "__getitem__")
        and hasattr(data, "__len__")
        and not hasattr(data, "shape")
        and not isinstance(data, (tuple, dict, str, keras.utils.PyDataset))
    )


def _indexable(array: Any) -> Any:
    """Convert tensors and pandas frames to NumPy arrays, which can be indexed by arrays of indices."""
    return np.asarray(array) if hasattr(array, "numpy") or hasattr(array, "to_numpy") else array


def _rows(arrays: Any, indices: NDArray[np.int64]) -> Any:
    return keras.tree.map_structure(lambda array: array[indices], arrays)


def _stack(samples: list[Any]) -> Any:
    return _tensors(keras.tree.map_structure(lambda *parts: np.stack(parts), *samples))


def _tensors(batch: Any) -> Any:
    return keras.tree.map_structure(_tensor, batch)


def _tensor(array: Any) -> Any:
    array = np.asarray(array)
    return tf.convert_to_tensor(array, keras.config.floatx() if array.dtype.kind == "f" else None)
