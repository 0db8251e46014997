"""What samples cost to compute, such as their tokens, for batches that are split by it. Pure values."""

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import ArrayLike, NDArray

# The cost of the dearest sample. Costs are integers, so that their sum is the same anywhere.
_MOST = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Costs:
    """The costs of successive samples of an epoch."""

    epoch: int
    start: int  # position of the first in the epoch's permutation
    values: bytes  # uint32, little-endian, one for each sample

    @property
    def array(self) -> NDArray[np.uint32]:
        """The costs, (samples,)."""
        return np.frombuffer(self.values, "<u4")


def digest(costs: NDArray[np.uint32]) -> str:
    """Return a text that is another for other costs, (samples,)."""
    return blake2b(costs.astype("<u4").tobytes(), digest_size=8).hexdigest()


def scaled_costs(cost: ArrayLike | Callable[[int], float], samples: int) -> NDArray[np.uint32]:
    """Return the costs of a data set's samples as integers, (samples,), that of the dearest 2^32 - 1.

    Args:
        cost: The costs, (samples,), or a function of a sample's index; in any unit, numbers from 0 on.
        samples: Samples of the data set.

    Raises:
        ValueError: There are more or fewer costs, or one is not allowed.
    """
    given = [cost(index) for index in range(samples)] if callable(cost) else cost
    try:
        costs = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError("cost: must be one number for each sample") from error
    if costs.shape != (samples,):
        raise ValueError(f"cost of shape {costs.shape}: must be one number for each of {samples} samples")
    wrong = np.flatnonzero(~((costs >= 0) & (costs < np.inf)))
    if len(wrong):
        raise ValueError(f"cost {costs[wrong[0]]:g} of sample {wrong[0]}: must be a finite number from 0")
    if not costs.max():
        raise ValueError("cost: is 0 for each sample; leave it out where all samples cost the same")
    scaled: NDArray[np.uint32] = np.maximum(np.rint(costs / costs.max() * _MOST), 1).astype(np.uint32)
    return scaled
