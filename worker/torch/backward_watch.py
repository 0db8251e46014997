"""The times of a backward pass under DDP, and of reductions that overlap with it (Cannikin, section 3.2)."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from worker.meter import BackwardTimes


@dataclass(slots=True)
class Bucket:
    """A bucket of gradients that was ready at a moment, in seconds; `reduced` once it is summed.

    Attributes:
        is_last: Whether it is the last one of the pass.
        ready: The moment when its gradients were computed.
        reduced: The moment when the sum over the ranks was there; None before.
    """

    is_last: bool
    ready: float = field(default_factory=time.perf_counter)
    reduced: float | None = None

    def note_reduced(self) -> None:
        """Note that it is summed now; may be called by any thread."""
        self.reduced = time.perf_counter()


def backward_times(begun: float | None, buckets: Sequence[Bucket]) -> BackwardTimes:
    """Return the times of a backward pass; all are unknown where its begin or a reduction's end is.

    So they are where it has a single bucket: then nothing overlaps. DDP takes one for the first pass of any
    model, and forms several after it.

    Args:
        begun: The moment when it began, in seconds; None where that is not known.
        buckets: All its buckets, in the order in which they were ready.
    """
    if begun is None or len(buckets) < 2 or not buckets[-1].is_last:
        return BackwardTimes()
    others = alone = 0.0
    end = begun
    for bucket in buckets:
        if bucket.reduced is None:
            return BackwardTimes()
        others += alone
        alone = max(0.0, bucket.reduced - max(bucket.ready, end))  # since all before it were summed
        end = max(end, bucket.reduced)
    return BackwardTimes(buckets[-1].ready - begun, buckets[0].ready - begun, others, alone)


class BackwardWatch:
    """Watches a model's backward passes by the host's clock, which says nothing of a GPU's.

    A pass begins with the gradient of the model's output. Of several forward passes for an iteration, as
    under `no_sync`, the last one counts, since its backward pass is the one whose gradients are reduced. A
    model that is compiled as a whole, DDP included, has no such moment, and is not measured.

    Args:
        model: The model in `DistributedDataParallel`.
    """

    def __init__(self, model: nn.Module) -> None:
        self._begun: float | None = None
        self._buckets: list[Bucket] = []
        model.register_forward_hook(self._note_forward)

    def ready(self, *, is_last: bool) -> Bucket:
        """Note that a bucket of gradients is ready now, to be summed over the ranks."""
        self._buckets.append(bucket := Bucket(is_last))
        return bucket

    def take(self) -> BackwardTimes:
        """Return the times of the last pass, whose reductions have ended, and forget them."""
        begun, buckets = self._begun, self._buckets
        self._begun, self._buckets = None, []
        return backward_times(begun, buckets)

    def _note_forward(self, model: Any, inputs: Any, output: Any) -> None:
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return
        self._begun, self._buckets = None, []
        for tensor in _tensors(output):
            if tensor.requires_grad:
                tensor.register_hook(self._note_backward)  # type: ignore[no-untyped-call]

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
