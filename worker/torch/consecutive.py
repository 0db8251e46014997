"""PyTorch: gradients of one rank alone, in pairs of successive iterations that differ by their noise."""

import torch
from torch import distributed

from idl.plan import Assignment
from worker.gradient_norms import OwnNorms
from worker.torch.gradient_norms import squared_norm


class ConsecutivePairs:
    """The norms of two successive gradients and of their difference (Pollux, section 3.1), by buckets.

    Each gradient is in one pair only. Of the first one, a copy is kept until the second is there.
    """

    def __init__(self, norms: OwnNorms) -> None:
        self._norms = norms
        self._first: Assignment | None = None
        self._second: Assignment | None = None
        # Of the first, by number of the bucket: a copy, and where the bucket's parameters are.
        self._kept: dict[int, tuple[torch.Tensor, list[int]]] = {}
        # Of the first, the second, and the difference; empty where they cannot be compared.
        self._squares: list[torch.Tensor | float] = []

    def add(
        self,
        part: Assignment,
        bucket: distributed.GradBucket,  # type: ignore[name-defined]
        diagonal: torch.Tensor | None,
    ) -> None:
        """Take a bucket of an iteration's gradient, which is not to be changed before it returns.

        Args:
            diagonal: Its preconditioner, (elements,), or None; both gradients are multiplied by it.
        """
        gradient = bucket.buffer()
        parameters = [parameter.data_ptr() for parameter in bucket.parameters()]
        if part is not self._first and part is not self._second:
            self._begin(part)
        if self._second is None:
            self._kept[bucket.index()] = gradient.clone(), parameters
            return
        before, of = self._kept.pop(bucket.index(), (gradient, []))
        if of != parameters:  # buckets are formed anew after a model's first iteration
            self._squares = []
        elif self._squares:
            added = [squared_norm(before, diagonal), squared_norm(gradient, diagonal)]
            added.append(squared_norm(before.sub_(gradient), diagonal))
            self._squares = [sum_ + one for sum_, one in zip(self._squares, added, strict=True)]
        if bucket.is_last():
            assert self._first is not None
            if self._squares:
                self._norms.take_pair(self._first, part, self._squares)
            self._first = self._second = None

    def _begin(self, part: Assignment) -> None:
        first = self._first
        if (
            first is not None
            and self._second is None
            and (first.attempt, first.iteration + 1) == (part.attempt, part.iteration)
        ):
            self._second, self._squares = part, [0.0] * 3
        else:
            self._first, self._second, self._kept = part, None, {}
