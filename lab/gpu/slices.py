"""A worker's slice of made-up data, gone through in micro-batches as in training, but without services."""

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

from idl.bounds import Bounds
from idl.plan import Assignment, JobSpec
from idl.synchronisation import Synchronisation
from lab.gpu.models import workloads
from lab.gpu.setup import Setup
from worker.data.micro_batches import micro_batches_of
from worker.gradient_norms import OwnNorms
from worker.limits import Limits
from worker.torch.micro_batches import EVERY_OFF_CPU, Accumulation, SlicedBatch, micro_batches
from worker.torch.preconditioner import preconditioner_of
from worker.weights import Weights


def slice_of(
    name: str, number: int, micro_batch: int, setup: Setup, optimize: Callable[..., Any] | None = None
) -> Callable[..., nn.Module]:
    """Return a function that computes a slice, and returns the model with its gradient.

    It takes the number of micro-batches at once, and `norms`, whether their gradients' norms are taken.

    Args:
        optimize: Makes an optimiser of parameters and steps with it until norms are preconditioned by it;
            None for plain ones.
    """
    workload = workloads(setup.quick)[name]
    torch.manual_seed(1)
    model = workload.make().to(setup.device)
    total = number * micro_batch
    inputs, classes = workload.batch(total, setup.device)
    spec = JobSpec(total, total, micro_batch=micro_batch)
    limits = Limits(Bounds(at_once=number))
    training = SimpleNamespace(micro_batch=micro_batch)
    session = SimpleNamespace(
        limits=limits,
        synchronisation=Synchronisation(),
        norms=OwnNorms(),
        training=training,
        weights=Weights(),
    )
    preconditioner = None if optimize is None else preconditioner_of(optimize(list(model.parameters())))
    accumulation = Accumulation(session, list(model.parameters()), model, None, preconditioner)  # type: ignore[arg-type]
    order = np.arange(total)
    # Norms are taken in some iterations only: in all that are multiples of this, and in no odd ones.
    with_norms, without = itertools.count(0, EVERY_OFF_CPU), itertools.count(1, 2)

    def load(part: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return inputs[part.position : part.position + part.count], classes[part.position :][: part.count]

    def compute(at_once: int, norms: bool = False) -> nn.Module:
        session.norms.of_micro_batches = norms
        iteration = next(with_norms if norms else without)
        assignment = Assignment(iteration, 0, 0, total, total, batch_start=0, at_once=at_once)
        parts = micro_batches_of(spec, order, assignment)
        slice_ = SimpleNamespace(assignment=assignment, indices=order, micro_batches=parts)
        model.zero_grad()
        for images, labels in micro_batches(SlicedBatch(slice_, load, accumulation)):  # type: ignore[arg-type]
            nn.functional.cross_entropy(model(images).flatten(0, -2), labels.flatten()).backward()
        return model

    return compute
