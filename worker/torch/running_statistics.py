"""PyTorch: batch normalisation in parts of batches, and its running statistics by several micro-batches."""

from functools import partial

import torch
from torch import distributed, nn
from torch.nn.modules.batchnorm import _NormBase

from idl.errors import InvalidRequestError
from worker.torch.module_hook import ModuleHook

_OF_A_PART = "start workers with `--min-batch-size 2` or more"
_OF_A_MICRO_BATCH = "give the loader a `micro_batch` that is larger and divides the batch size"


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


def refuse_single_values(model: nn.Module | None, micro_batch: int | None) -> None:
    """Have a model's batch normalisation refuse, in training, parts of batches with one value a channel.

    PyTorch does so, too, but says nothing of parts.

    Args:
        model: The model; None for none.
        micro_batch: Samples of the job's micro-batches; None for a job without.
    """
    for name, layer in model.named_modules() if model is not None else ():
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
            check = partial(_check_values, name, micro_batch)
            layer.register_forward_pre_hook(ModuleHook(check))


def _check_values(
    name: str, micro_batch: int | None, layer: nn.BatchNorm1d, inputs: tuple[torch.Tensor, ...]
) -> None:
    if not inputs or inputs[0].dim() < 2 or inputs[0].numel() != inputs[0].shape[1]:
        return
    if layer.training or layer.running_mean is None:
        what, advice = ("part", _OF_A_PART) if micro_batch is None else ("micro-batch", _OF_A_MICRO_BATCH)
        raise InvalidRequestError(
            f"{name}: {type(layer).__name__} has one value for each channel, which has no variance, as this "
            f"worker's {what} of the batch has one sample: {advice}, and drop_last=True where an epoch's "
            f"last batch is too small; or take GroupNorm or LayerNorm"
        )


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
