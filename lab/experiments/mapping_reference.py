"""Training in one process with plain PyTorch, which any mapping of the same micro-batches must come to.

It takes cuts, order and seeds from where workers do, and none of their sums: neither those of gradients nor
those of running statistics.
"""

import argparse
from collections.abc import Mapping

import torch

from idl.plan import Assignment, JobSpec, permutation
from lab.workloads.common import Workload
from worker.data.micro_batches import Draws, micro_batches_of
from worker.torch.randomness import seed_generators


def train_alone(workload: Workload, options: argparse.Namespace, *, backwards: bool = False) -> None:
    """Train a workload for `options.iterations` iterations with `options.micro_batch`.

    Each micro-batch finds the running statistics of batch normalisation as they were before the iteration,
    which ends with the mean of what the micro-batches have made of them, weighted by samples. Backwards, an
    iteration's micro-batches are taken from the last to the first, and their sums are rounded otherwise: what
    the results differ by, the training has made of rounding errors alone.
    """
    samples = len(workload.train_set)
    spec = JobSpec(samples, options.batch_size, options.seed, micro_batch=options.micro_batch)
    model, optimizer = workload.model, workload.optimizer
    statistics = [
        buffer for name, buffer in model.named_buffers() if name.endswith(("running_mean", "running_var"))
    ]
    counts = [buffer for name, buffer in model.named_buffers() if name.endswith("num_batches_tracked")]
    for iteration in range(options.iterations):
        epoch, start, total = spec.batch(iteration)
        whole = Assignment(iteration, epoch, start, total, total, batch_start=start)
        before = [tensor.clone() for tensor in statistics]
        sums = [torch.zeros_like(tensor) for tensor in statistics]
        optimizer.zero_grad()
        parts = micro_batches_of(spec, permutation(spec, epoch), whole)
        for part in reversed(parts) if backwards else parts:
            _copy(statistics, before)
            for count in counts:
                count.fill_(iteration)
            seed_generators(part.seed(Draws.LOADING))
            inputs, targets = workload.collate([workload.train_set[index] for index in part.indices.tolist()])
            seed_generators(part.seed(Draws.COMPUTING))
            loss = workload.loss(model(inputs), targets) * (len(part.indices) / total)
            loss.backward()
            for tensor, new in zip(sums, statistics, strict=True):
                tensor.add_(new, alpha=len(part.indices) / total)
        _copy(statistics, sums)
        optimizer.step()


def state_vector(state: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return the parameters and running statistics of a state dict in double precision, (elements,)."""
    return torch.cat([tensor.flatten().double() for tensor in state.values()])


@torch.no_grad()
def _copy(into: list[torch.Tensor], values: list[torch.Tensor]) -> None:
    for tensor, value in zip(into, values, strict=True):
        tensor.copy_(value)
