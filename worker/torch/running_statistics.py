"""PyTorch: what batch normalisation's running statistics become by several micro-batches."""

import torch
from torch import distributed, nn
from torch.nn.modules.batchnorm import _NormBase


def running_statistics(model: nn.Module | None) -> dict[str, torch.Tensor]:
    """Return the running means and variances of a model's batch and instance normalisation, by name.

    The numbers of batches belong to them: without a momentum, the statistics are means over these.
    """
    layers = model.named_modules() if model is not None else ()
    return {
        f"{name}.{key}": getattr(layer, key)
        for name, layer in layers
        if isinstance(layer, _NormBase) and layer.running_mean is not None
        for key in ("running_mean", "running_var", "num_batches_tracked")
        if getattr(layer, key) is not None
    }


class RunningStatistics:
    """A model's running statistics, which move once by the mean of what each micro-batch would have done.

    Each micro-batch finds them as they were before the first. That is the moving average's one step with the
    mean of the micro-batches' statistics, whatever the layers' momenta are, and whether some are frozen.

    Args:
        model: The model; None for none, whose statistics are no concern.
    """

    def __init__(self, model: nn.Module | None) -> None:
        moving = running_statistics(model).values()
        self._means = [tensor for tensor in moving if tensor.is_floating_point()]  # and variances
        self._counts = [tensor for tensor in moving if not tensor.is_floating_point()]
        self._moving = self._means + self._counts
        self._start: list[torch.Tensor] = []  # of `_moving`, as they were before the first micro-batch
        self._flat_start = torch.empty(0)  # (elements,), likewise
        self._change = torch.empty(0)  # (elements,) of `_moving`, times samples

    def begin(self) -> None:
        """Remember the statistics as they are, before the first micro-batch of a slice."""
        self._start = [tensor.clone() for tensor in self._moving]
        if self._moving:
            self._flat_start = self._flat()
            self._change = torch.zeros_like(self._flat_start)

    def rewind(self) -> None:
        """Set them back, before a micro-batch."""
        if self._moving:
            torch._foreach_copy_(self._moving, self._start)

    @torch.no_grad()
    def add(self, count: int) -> None:
        """Add what a micro-batch has changed, weighted by its samples."""
        if self._moving and count:  # without weight, what has changed may be infinite
            self._change.add_(self._flat() - self._flat_start, alpha=count)

    @torch.no_grad()
    def end(self, total: int, group: distributed.ProcessGroup | None = None) -> None:
        """Set them to the start's values and the mean change, after the last micro-batch.

        Args:
            total: Samples that the mean is over; with 0 they are as they were.
            group: The process group over whose ranks the changes are summed; None for a process alone.
        """
        if not self._moving:
            return
        if group is not None:
            distributed.all_reduce(self._change, group=group)
        mean = self._change.div_(max(1, total))
        parts = torch.split(mean, [tensor.numel() for tensor in self._moving])
        for tensor, start, part in zip(self._moving, self._start, parts, strict=True):
            tensor.copy_(start + part.view_as(start))

    def _flat(self) -> torch.Tensor:
        """Return the present elements in double precision, (elements,)."""
        parts = [torch.cat(self._means).double()]  # by type: a cat of several takes ten times as long
        if self._counts:
            parts.append(torch.stack(self._counts).double())
        return torch.cat(parts)
