"""JAX: a gradient that is pushed while `value_and_grad` computes it."""

import itertools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike

from worker.early_push import EarlyPush
from worker.flat_order import FlatArrays, FlatOrder
from worker.jax.staged import Stages


class GradientPush:
    """Copies a gradient into the flat array as its stages are ready, and has them pushed.

    Args:
        push: Pushes its buckets.
        order: Its order.
        pulled: Returns the leaves of the parameters as last pulled, which are the first tensors of the order.

    Attributes:
        stages: The numbers of the parameters whose gradients are to be ready first, of those next, and so on.
    """

    def __init__(
        self, push: EarlyPush, gradients: FlatArrays, order: FlatOrder, pulled: Callable[[], Sequence[Any]]
    ) -> None:
        self._push = push
        self._gradients = gradients
        self._pulled = pulled
        trained = len(pulled())
        # Statistics are known by the step alone.
        self.stages: Stages = list(
            itertools.takewhile(lambda bucket: max(bucket) < trained, order.buckets[:-1])
        )

    def begin(self, params: Any) -> bool:
        """Return whether the gradient by these parameters is of use before all of it is computed.

        So is the first gradient of a batch, by the parameters as last pulled.
        """
        pulled, leaves = self._pulled(), jax.tree.leaves(params)
        is_own = len(leaves) == len(pulled) and all(map(operator.is_, leaves, pulled))
        return bool(self.stages) and is_own and not self._push.has_begun and self._push.begin()

    def take(self, gradient: Any) -> None:
        """Take the gradient, whose arrays are ready stage by stage; wait for all stages but the last."""
        leaves = jax.tree.leaves(gradient)
        for copied, stage in enumerate(self.stages, 1):
            for number in stage:
                # NumPy's functions of an array of JAX would be operations of JAX, which wait for all stages.
                self._gradients[number] = np.asarray(leaves[number])
            self._push.advance(copied)

    def finish(self, gradient: Sequence[ArrayLike]) -> int:
        """Compare what was copied with the gradient of the step, by leaves; see `EarlyPush.finish`."""
        return self._push.finish(lambda number: self._gradients.has_bits_of(number, gradient[number]))
