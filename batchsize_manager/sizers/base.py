"""The interface of sizers, and the values that they take and return."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from idl.noise import Noise


@dataclass(frozen=True, slots=True)
class Situation:
    """The state of a job where its next batch is planned, as a sizer sees it.

    Attributes:
        seconds: Function from sizes of whole batches to the seconds of an iteration with each; None while
            nothing is known of them.
    """

    iteration: int  # the iteration to be planned
    epoch: int  # the epoch of its batch
    size: int  # samples of a whole batch so far
    least: int  # the fewest samples that may be chosen
    most: int  # the most samples that may be chosen, at least `least`
    step: int  # samples that sizes are multiples of, as far as the bounds allow
    noise: Noise  # the gradient noise, as far as it is known
    seconds: Callable[[Sequence[int]], Sequence[float] | None]

    def rounded(self, size: float) -> int:
        """Return the multiple of `step` that is nearest to a size, within the bounds."""
        if math.isinf(size):
            return self.most
        return max(self.least, min(round(size / self.step) * self.step, self.most))


class Choice(NamedTuple):
    """The size that a sizer has chosen."""

    size: int  # samples of a whole batch from now on; the present size where it is to stay
    why: str  # the reason, in words, as one clause


class Sizer(ABC):
    """A way to choose the size of a whole batch, without a state: a choice follows from the situation."""

    every = 1  # a choice is asked for in the iterations that are multiples of this; 0: in none
    by_epoch = False  # true to be asked only for the first of an epoch's batches that is planned

    @abstractmethod
    def choose(self, at: Situation) -> Choice | None:
        """Return the size of the next whole batch; None where there is nothing to choose by."""
