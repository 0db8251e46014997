"""The times of a backward pass, and of transfers that overlap with it (Cannikin, section 3.2)."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from worker.buckets import Bucket, backward_times
from worker.meter import BackwardTimes
from worker.torch.module_hook import ModuleHook


class BackwardWatch:
    """Watches a model's backward passes by the host's clock, which says nothing of a GPU's.

    A pass begins with the gradient of the model's output. Of several forward passes for an iteration, as
    under `no_sync`, the last one counts, since its backward pass is the one whose gradients are sent. A model
    that is compiled as a whole, DDP included, has no such moment, and is not measured.

    Args:
        model: The model as the script calls it, such as that in `DistributedDataParallel`.
    """

    def __init__(self, model: nn.Module) -> None:
        self._begun: float | None = None
        self._buckets: list[Bucket] = []
        model.register_forward_hook(ModuleHook(self._note_forward))

    def ready(self, *, is_last: bool) -> Bucket:
        """Note that a bucket of gradients is ready now, to be summed over the ranks or pushed."""
        self._buckets.append(bucket := Bucket(is_last))
        return bucket

    def take(self) -> BackwardTimes:
        """Return the times of the last pass, whose buckets have been taken, and forget them."""
        begun, buckets = self._begun, self._buckets
        self._begun, self._buckets = None, []
        return backward_times(begun, buckets)

    def _note_forward(self, model: Any, inputs: Any, output: Any) -> None:
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return
        self._begun, self._buckets = None, []
        for tensor in _tensors(output):
            if tensor.requires_grad:
                tensor.register_hook(self._note_backward)

    def _note_backward(self, gradient: torch.Tensor) -> None:
        if self._begun is None:
            self._begun = time.perf_counter()


def _tensors(output: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in a model's output: a tensor, or sequences and mappings of such."""
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from _tensors(value)
    elif isinstance(output, list | tuple):
        for value in output:
            yield from _tensors(value)
