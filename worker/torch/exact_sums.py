"""PyTorch: gradients and running statistics summed in fixed point, on the device that they are on.

See `idl.exact_sums` for the arithmetic, of which this is the part for tensors.
"""

import itertools
from collections.abc import Mapping

import torch

from idl.errors import InvalidRequestError
from idl.exact_sums import FixedPoint, weight_unit


class ExactSums:
    """Sums over a batch's micro-batches, as far as this worker has computed them or the ranks have shared.

    Args:
        parameters: The parameters whose `grad` is summed, by name.
        statistics: The running statistics whose values are summed, by name.
        weight_limit: The job's `JobSpec.weight_limit`.
    """

    def __init__(
        self,
        parameters: Mapping[str, torch.Tensor],
        statistics: Mapping[str, torch.Tensor],
        weight_limit: int | None = None,
    ) -> None:
        elements = sum(tensor.numel() for tensor in (*parameters.values(), *statistics.values()))
        device = next(iter(parameters.values())).device
        self._weight_unit = None if weight_limit is None else weight_unit(weight_limit)
        beside = 0 if self._weight_unit is None else 1  # for what gradients are means over
        self._shared = torch.zeros(elements + beside, dtype=torch.int64, device=device)
        # (elements,) int64: sums of the parameters' gradients, then of the statistics.
        self.flat = self._shared[:elements]
        trained = sum(tensor.numel() for tensor in parameters.values())
        self._gradients = _Part(self.flat[:trained], parameters, statistics=False)
        self._statistics = _Part(self.flat[trained:], statistics, statistics=True)
        self._mass = 1.0  # of the slice, which the gradients left are means over

    def begin(self, total: int) -> None:
        """Begin a slice of a batch of `total` samples."""
        self._gradients.begin(total)
        self._statistics.begin(total)

    def clear(self) -> None:
        """Leave the parameters without gradients, before a micro-batch."""
        for parameter in self._gradients.tensors:
            parameter.grad = None

    @torch.no_grad()
    def add(self, count: int, weight: float | None = None) -> None:
        """Add a micro-batch's gradients and statistics, times its samples; with 0, nothing.

        Args:
            weight: What gradients are multiplied by instead, by `idl.exact_sums.exact_weight`.
        """
        mass = count if weight is None else weight
        if mass:
            self._gradients.add([p.grad for p in self._gradients.tensors], mass)
        if count:
            self._statistics.add([statistic.double() for statistic in self._statistics.tensors], count)

    def check(self) -> None:
        """Check that all that was added was in its range.

        Raises:
            InvalidRequestError: It was not; the message has the first such tensor, and what is allowed.
        """
        self._gradients.check()
        self._statistics.check()

    @torch.no_grad()
    def leave(self, mass: float) -> None:
        """Leave the mean gradient of the slice, of this mass, in `grad`, for scripts that look at it."""
        self._mass = mass or 1.0
        for parameter, mean in zip(self._gradients.tensors, self._gradients.means(self._mass), strict=True):
            parameter.grad = mean

    @torch.no_grad()
    def check_left(self) -> None:
        """Check that the gradients are still as `leave` has left them.

        Raises:
            InvalidRequestError: The script has changed them, which the sums would not show.
        """
        left = self._gradients.means(self._mass)
        found = [parameter.grad for parameter in self._gradients.tensors]
        # Values are compared: a GradScaler changes them without counting the change in `_version`.
        alike = [(now == mean).all() for now, mean in zip(found, left, strict=True) if now is not None]
        if len(alike) < len(left) or not torch.stack(alike).all():
            raise InvalidRequestError(
                "gradients were changed between the loop over micro-batches and optimizer.step(), as by "
                "clipping, a GradScaler, or zero_grad(): with exact sums (--exact), a worker pushes what "
                "was summed within the loop. Change each micro-batch's gradient there, or train with "
                "DistributedDataParallel, where the loop leaves the gradient of the whole batch"
            )

    def shared(self, weight: float | None) -> torch.Tensor:
        """Return the integers that ranks sum up, in place, before `settle`: `flat`, and any weight.

        Args:
            weight: That of the slice, by `idl.exact_sums.exact_weight`; None in a job without weights.
        """
        if self._weight_unit is not None and weight is not None:
            self._shared[-1] = round(weight / self._weight_unit)
        return self._shared

    @torch.no_grad()
    def settle(self) -> None:
        """Set gradients and statistics to the mean over the batch, once `shared` has the sums over it."""
        mass = None
        if self._weight_unit is not None:
            mass = self._shared[-1].double() * self._weight_unit
            mass = torch.where(mass > 0, mass, 1.0)
        for parameter, mean in zip(self._gradients.tensors, self._gradients.means(mass), strict=True):
            parameter.grad = mean
        for statistic, mean in zip(self._statistics.tensors, self._statistics.means(), strict=True):
            statistic.copy_(mean)


class _Part:
    """The sums of gradients, or those of statistics.

    Args:
        sums: (elements,) int64, which is changed in place.
        tensors: The tensors, by name.
        statistics: Whether they are statistics.
    """

    def __init__(self, sums: torch.Tensor, tensors: Mapping[str, torch.Tensor], *, statistics: bool) -> None:
        self.tensors = list(tensors.values())
        self._sums = sums
        self._names = list(tensors)
        self._is_statistics = statistics
        self._form = FixedPoint(1, statistics)
        # (2,): the largest absolute value, or NaN, and its element: of the last micro-batch, or of the first
        # that was out of range.
        self._largest: torch.Tensor | None = None

    def begin(self, total: int) -> None:
        """Begin a slice of a batch of `total` samples."""
        self._sums.zero_()
        self._form, self._largest = FixedPoint(total, self._is_statistics), None

    def add(self, values: "list[torch.Tensor] | list[torch.Tensor | None]", mass: float) -> None:
        """Add a micro-batch's values times its mass, one for each tensor; None stands for zeros."""
        if not self.tensors:
            return
        given = [
            (torch.zeros_like(tensor) if value is None else value).flatten()
            for value, tensor in zip(values, self.tensors, strict=True)
        ]
        flat = torch.cat(given)
        # Looked at once the slice is done: a GPU need not be waited for between its micro-batches.
        largest = torch.stack([number.double() for number in flat.abs().max(dim=0)])
        if self._largest is not None:
            largest = torch.where(self._largest[0] < self._form.limit, largest, self._largest)
        self._largest = largest
        scaled = flat.double().mul_(mass / self._form.unit)
        self._sums.add_(scaled.round_().long())

    def check(self) -> None:
        """Check the ranges of what was added; see `ExactSums.check`."""
        if self._largest is not None:
            value, element = self._largest.tolist()
            ends = itertools.accumulate(tensor.numel() for tensor in self.tensors)
            name = next(name for name, end in zip(self._names, ends, strict=True) if element < end)
            self._form.check(value, name)

    def means(self, mass: float | torch.Tensor | None = None) -> list[torch.Tensor]:
        """Return the mean for each tensor, in its dtype, over a mass; None: the samples of the batch."""
        flat = self._sums.double().mul_(self._form.unit).div_(self._form.total if mass is None else mass)
        parts = torch.split(flat, [tensor.numel() for tensor in self.tensors])
        return [
            part.view(tensor.shape).to(tensor.dtype) for part, tensor in zip(parts, self.tensors, strict=True)
        ]
