"""What a worker's gradients are means over, where that is not samples: tokens, boxes, the weights of a loss.

This module knows slices and samples, and neither a framework nor the wire.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, SupportsFloat

from idl.errors import InvalidRequestError
from idl.exact_sums import exact_weight, rounded_weight
from idl.plan import Assignment

FUNCTION = "weight="
"""What gives a weight where the loader has a function, as the user writes it."""

WEIGHT_LIMIT = 2**13
"""The most that a sample may weigh where sums are exact, unless a loader says otherwise."""

_TOLERANCE = 1e-6  # relative: a loss may count in float32

Weigh = Callable[[Any], SupportsFloat]


class Weights:
    """The weights of a worker's slices and, in a job with micro-batches, of these.

    Each is noted once it is known: when the loader has made a batch, by a function of the batch; or in the
    backward pass, by a loss that knows what it is a mean over. Both may note it, and must agree then.
    """

    def __init__(self) -> None:
        # The most that a sample may weigh where sums are exact; None in a job whose gradients are means over
        # samples.
        self.limit: int | None = None
        self.function: Weigh | None = None  # from a batch to its weight; None where losses note it
        self.is_exact = False  # whether sums are exact
        self._part: Assignment | None = None  # the slice that is computed at present
        self._samples = 0  # of it, or of the micro-batch that is computed at present
        self._given: tuple[float, str] | None = None  # the weight of that, and what gave it
        self._sum: float | None = None  # of the slice's weights so far
        self._on_known: Callable[[float], None] | None = None
        self._loss = ""  # which losses note their weights, for errors
        # Begins to sum a slice's weight over the ranks of an all-reduce, as soon as it is known: set by what
        # needs the sum before the backward pass.
        self.add_up: Callable[[float], Any] | None = None
        self._sum_of_ranks: Any = None  # what `add_up` has returned for the slice

    def declare(
        self, weight: Weigh | str | None, limit: int, loss: str = "evenpace.torch.mean(losses, mask)"
    ) -> int | None:
        """Take a loader's arguments, and return the `JobSpec.weight_limit` that they stand for.

        Args:
            weight: A function from a batch to its weight, "loss" where losses note it, or None.
            limit: The most that a sample may weigh.
            loss: Which losses note their weights, in the framework's words; for errors.

        Raises:
            InvalidRequestError: `weight` is something else.
        """
        if weight is None:
            return None
        self._loss = loss
        if not callable(weight) and weight != "loss":
            raise InvalidRequestError(
                f"weight={weight!r}: must be a function from a batch to what its loss is a mean over, or "
                f'"loss" where the loss is {loss}'
            )
        self.function = weight if callable(weight) else None
        self.limit = limit
        return limit

    @property
    def are_given(self) -> bool:
        """Return whether gradients are means over something else than samples."""
        return self.limit is not None

    def begin(self, part: Assignment | None) -> None:
        """Begin a slice."""
        self._part, self._samples = part, 0 if part is None else part.count
        self._given = self._sum = self._sum_of_ranks = None

    @contextmanager
    def micro_batch(self, samples: int, on_known: Callable[[float], None] | None = None) -> Iterator[None]:
        """Take the weight of a micro-batch of the slice, which the `with` block loads and computes.

        Args:
            samples: Its samples; with 0, it has no weight whatever is noted.
            on_known: Called with the weight once it is known, before the backward pass goes through a layer;
                not in a job whose gradients are means over samples. None: nothing is called.

        Raises:
            InvalidRequestError: The block has ended, and the weight is not known.
        """
        before, self._samples, self._given, self._on_known = self._sum, samples, None, on_known
        try:
            yield
        except BaseException:
            self._sum = before  # it may be tried again
            raise
        finally:
            self._on_known = None
        self.of_micro_batch()

    def weigh(self, batch: Any) -> None:
        """Note the weight of a batch that the loader has made, where it has a function for it."""
        if self.function is not None:
            self.note(self.function(batch), FUNCTION)

    def note(self, weight: SupportsFloat, by: str) -> None:
        """Note the weight of the slice or micro-batch that is computed at present.

        Args:
            by: What gives it, as the user writes it.

        Raises:
            InvalidRequestError: It is no number that is allowed, another one was noted before, or the job has
                no weights.
        """
        if self.limit is None:
            raise InvalidRequestError(
                f"{by} says what the gradient is a mean over, but this job's are means over samples: make "
                f'the loader with weight=, such as weight="loss", on all workers'
            )
        value = _checked(weight, by)
        if self.is_exact:
            value = rounded_weight(value)
            most = self.limit * max(1, self._samples)
            if value > most:
                raise InvalidRequestError(
                    f"{by}: a weight of {value:g} for {self._samples} samples: with exact sums (--exact) at "
                    f"most weight_limit={self.limit} for each; make the loaders with a higher one"
                )
        if self._given is not None:
            if abs(value - self._given[0]) > _TOLERANCE * max(value, self._given[0]):
                raise InvalidRequestError(
                    f"the gradient is a mean over {self._given[0]:g} by {self._given[1]}, and over {value:g} "
                    f"by {by}; a batch has one loss, a mean over one number of tokens or the like"
                )
            return
        self._given = value, by
        known = value if self._samples else 0.0
        self._sum = (self._sum or 0.0) + known
        if self._on_known is not None:
            self._on_known(known)
        if self.add_up is not None:
            self._sum_of_ranks = self.add_up(known)

    def sum_of_ranks(self, part: Assignment) -> Any:
        """Return what `add_up` returns for a slice's weight, which it is given now at the latest.

        Raises:
            InvalidRequestError: The weight is not known.
        """
        if self._sum_of_ranks is None:
            assert self.add_up is not None
            self._sum_of_ranks = self.add_up(self.of(part) or 0.0)
        return self._sum_of_ranks

    def is_known(self, part: Assignment) -> bool:
        """Return whether a slice can be pushed as far as its weight goes."""
        return self.limit is None or (self._part is part and self._given is not None)

    def of(self, part: Assignment) -> float | None:
        """Return the weight of a slice; None in a job whose gradients are means over samples.

        Where sums are exact, it is what they have for it (`idl.exact_sums.exact_weight`).

        Raises:
            InvalidRequestError: It is not known.
        """
        if self.limit is None:
            return None
        if self._part is not part or self._sum is None:
            raise self._unknown(f"iteration {part.iteration}")
        return exact_weight(self._sum, self.limit) if self.is_exact else self._sum

    def of_micro_batch(self) -> float | None:
        """Return the weight of the micro-batch that is computed at present; None as in `of`.

        Raises:
            InvalidRequestError: It is not known.
        """
        if self.limit is None:
            return None
        if self._given is None:
            raise self._unknown("a micro-batch")
        return self._given[0] if self._samples else 0.0

    def in_sums(self, weight: float) -> float:
        """Return what exact sums multiply a micro-batch of this weight by."""
        return weight if self.limit is None else exact_weight(weight, self.limit)

    def _unknown(self, what: str) -> InvalidRequestError:
        return InvalidRequestError(
            f"{what}: it is not known what the gradient is a mean over; the loader has "
            f'weight="loss", so the loss that goes backward is to be {self._loss}'
        )


def _checked(weight: SupportsFloat, by: str) -> float:
    """Return a weight as a number (InvalidRequestError: it is none that is allowed)."""
    try:
        value = float(weight)
    except (TypeError, ValueError) as error:
        raise InvalidRequestError(f"{by}: a weight of {weight!r}: must be a number") from error
    if not 0 <= value < math.inf:
        raise InvalidRequestError(f"{by}: a weight of {value:g}: must be a finite number from 0")
    return value
