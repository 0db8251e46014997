"""Keras: a worker's slice in micro-batches, one after the other with one gradient buffer.

The gradient of a slice, and batch normalisation's moving statistics after it, are weighted means over its
micro-batches, each of which is the same on any worker. So they do not depend on how a batch is split.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from idl.errors import InvalidRequestError
from worker.data import sliced_batch
from worker.data.micro_batches import Draws, MicroBatch
from worker.data.slices import Slice
from worker.exchanges.parameter_server import ParameterServer
from worker.keras.randomness import ModelSeeds, seed_generators
from worker.session import Session

_LOOP = "`for x, y in evenpace.keras.micro_batches(batch)`"


class Accumulation:
    """The mean over a slice of what each micro-batch gives: gradients, and moving statistics.

    Each micro-batch finds the statistics as they were before the first. Their weighted mean is the moving
    average's one step with the mean of the micro-batches' statistics.

    Args:
        session: The session with a parameter server, whose `gradient` takes the mean, or the exact sums.
    """

    def __init__(self, session: Session) -> None:
        # The seeds of the model's layers, if an optimiser was given its model.
        self.model_seeds: ModelSeeds | None = None
        self.session = session
        self._part: Slice | None = None  # that is under way, or was gone through last
        self._added = 0  # micro-batches of it
        self._micro_batch: MicroBatch | None = None  # that is under way, and not added yet

    def seed_generators(self, seed: int) -> None:
        """Seed the generators that a script may draw from, and those of the model's layers."""
        seed_generators(seed)
        if self.model_seeds is not None:
            self.model_seeds.set(seed)

    def begin(self, part: Slice) -> None:
        """Begin a slice (InvalidRequestError: it was begun before)."""
        if self._part is part:
            raise InvalidRequestError(
                f"the micro-batches of iteration {part.assignment.iteration} were gone through before"
            )
        self._part, self._added = part, 0

    def begin_micro_batch(self, part: MicroBatch) -> None:
        """Begin a micro-batch: its layers' random numbers are its own."""
        self._micro_batch = part
        if self.model_seeds is not None:
            self.model_seeds.set(part.seed(Draws.COMPUTING))

    def make_array(self) -> NDArray[Any]:
        """Return an array, (elements,), for what `add` adds; without micro-batches the session's gradient."""
        gradient = ParameterServer.of(self.session.exchange).gradient
        if self.session.training.micro_batch is None:
            return gradient.values
        return np.empty(gradient.layout.elements, gradient.layout.dtype)

    def add(self, flat: NDArray[Any]) -> bool:
        """Add the mean gradient over a micro-batch and the statistics after it.

        In a job without micro-batches, they are those of the slice, and there is nothing to add to.

        Args:
            flat: (elements,), what `make_array` has returned.

        Returns:
            Whether it was the slice's last, so that the session's `gradient` has the mean over the slice.

        Raises:
            InvalidRequestError: No micro-batch is under way, or its gradient was added before; or a value is
                too large to be summed exactly, in a job that does.
        """
        if self.session.training.micro_batch is None:
            return True
        slice_, part = self._part, self._micro_batch
        if slice_ is None or part is None:
            raise InvalidRequestError(
                f"the job has micro-batches: call optimizer.apply once for each, in the loop {_LOOP}"
            )
        ParameterServer.of(self.session.exchange).gradient.accumulate(slice_.assignment, flat, part.count)
        self._added, self._micro_batch = self._added + 1, None
        return self._added == len(slice_.micro_batches)

    def end_micro_batch(self) -> None:
        """Check that the micro-batch's gradient was added (InvalidRequestError: it was not)."""
        part = self._micro_batch
        if part is not None:
            raise InvalidRequestError(
                f"the micro-batch at position {part.position} of epoch {part.epoch} has no gradient: call "
                f"optimizer.apply or apply_gradients once for each, in the loop {_LOOP}"
            )


class SlicedBatch(sliced_batch.SlicedBatch):
    """A worker's part of a batch, which `micro_batches` goes through.

    Args:
        load: Loads a micro-batch, and seeds its forward pass.
        accumulation: Takes what is summed over the micro-batches.
    """

    def __init__(self, part: Slice, load: Callable[[MicroBatch], Any], accumulation: Accumulation) -> None:
        super().__init__(part, load, _LOOP, accumulation.seed_generators)
        self.accumulation = accumulation


def micro_batches(batch: SlicedBatch) -> Iterator[Any]:
    """Yield the micro-batches of a worker's part of a batch, for a step each in a loop of one's own.

        for batch in loader:
            for x, y in evenpace.keras.micro_batches(batch):
                with tf.GradientTape() as tape:
                    loss = loss_function(y, model(x, training=True))
                optimizer.apply(tape.gradient(loss, model.trainable_variables))

    Each loss is the mean over its micro-batch. The optimiser adds up the gradients, and steps with the last
    one. The generators of Python, NumPy and Keras are seeded for each micro-batch, before its samples are
    loaded and before it is yielded, and for the whole batch, when the loader yields it and after the loop;
    likewise those of the model's layers, if `distribute` was given the model.

    Args:
        batch: What the loader of a job with micro-batches yields.

    Raises:
        InvalidRequestError: The batch is not one of such a job, or was gone through before; or the optimiser
            was not called for a micro-batch.
    """
    if not isinstance(batch, SlicedBatch):
        raise InvalidRequestError(
            f"micro_batches of a {type(batch).__name__}: make the loader with micro_batch=, "
            f"and give what it yields"
        )
    accumulation = batch.accumulation
    accumulation.begin(batch.part)
    for part in batch.micro_batches():
        with accumulation.session.weights.micro_batch(part.count):
            loaded = batch.load(part)
            accumulation.begin_micro_batch(part)
            yield loaded
            accumulation.end_micro_batch()
