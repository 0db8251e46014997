"""The gradient of a worker's slice as one flat array, in the parameters' layout; knows no framework."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from idl.errors import InvalidRequestError
from idl.exact_sums import add_to
from idl.layout import Layout
from idl.plan import Assignment
from worker.gradient_norms import OwnNorms, squared_norm
from worker.weights import Weights


class Gradient:
    """The mean gradient over a slice, or its exact sums; and in groups of statistics, their values.

    Args:
        exact: Whether sums are exact, as `idl.exact_sums` makes them.
        norms: Takes the norms of micro-batches.
        weights: What gradients are means over.

    Attributes:
        values: (elements,), of the layout's dtype, or int64 where sums are exact. The mean gradient may be
            written here, and so may exact sums, with `note_sums`; otherwise `accumulate` makes them.
    """

    def __init__(self, layout: Layout, exact: bool, norms: OwnNorms, weights: Weights) -> None:
        self.layout = layout  # the layout of the parameters
        self.values: NDArray[Any] = np.zeros(layout.elements, np.int64 if exact else layout.dtype)
        self._exact = exact
        self._norms = norms
        self._weights = weights
        self._summed: Assignment | None = None  # the slice that there are sums of
        self._samples = 0  # of it
        self._weight = 0.0  # of its micro-batches so far, where their gradients are no means over samples

    def accumulate(self, part: Assignment, values: NDArray[np.floating], count: int) -> None:
        """Add a micro-batch of a slice, by its weight; the first one begins from zero.

        A gradient without weight may be anything. Statistics are weighted by samples in any job.

        Args:
            part: The slice.
            values: (elements,): the gradient of the mean loss over the micro-batch and, in groups of
                statistics, their values after it.
            count: The micro-batch's samples, as `MicroBatch.count`; with 0, nothing is added.

        Raises:
            InvalidRequestError: It is not known what the gradient is a mean over; or a value is too large to
                be summed exactly, in a job that does.
        """
        weight = self._weights.of_micro_batch()
        if self._summed is not part:
            self.values.fill(0)
            self._summed, self._samples, self._weight = part, 0, 0.0
        if self._exact:
            mass = None if weight is None else self._weights.in_sums(weight)
            add_to(self.values, values, count, part.total, self.layout, mass)
        elif weight is not None:
            self._add_weighted(values, count / max(1, part.count), weight)
        elif count:
            self.values += values * self.values.dtype.type(count / part.count)
        self._samples += count
        if self._norms.of_micro_batches:
            self._norms.add(part, count, squared_norm(values, self.layout) if count else 0.0, weight)

    def _add_weighted(self, values: NDArray[np.floating], share: float, weight: float) -> None:
        """Add a micro-batch's gradient to the weighted mean so far, and its statistics by a share."""
        before, self._weight = self._weight, self._weight + weight
        number = self.values.dtype.type
        for begin, end, group in self.layout.ranges:
            place = slice(begin, end)
            if group.statistics:
                self.values[place] += values[place] * number(share)
            elif weight:
                self.values[place] *= number(before / self._weight)
                self.values[place] += values[place] * number(weight / self._weight)

    def note_sums(self, part: Assignment) -> None:
        """Note that `values` has exact sums over all of a slice's micro-batches, which an adapter made."""
        self._summed, self._samples = part, part.count

    def check(self, part: Assignment) -> None:
        """Check that exact sums, in a job that has them, are of the whole slice.

        Raises:
            InvalidRequestError: They are not.
        """
        summed = self._samples if self._summed is part else 0
        if self._exact and summed != part.count:
            raise InvalidRequestError(
                f"the job sums gradients exactly (`evenpace manager --exact`), which needs that of each "
                f"micro-batch, but those of iteration {part.iteration} are of {summed} of {part.count} "
                f"samples: go through them by evenpace.torch.micro_batches, or train by evenpace.keras"
            )
