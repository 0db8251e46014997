"""Time that norms of gradients take, by which the gradient noise is measured, as a share of an iteration."""

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch
from torch import nn

from idl.preconditioning import STEPS
from lab.gpu.models import workloads
from lab.gpu.setup import Setup
from lab.gpu.slices import slice_of
from worker.torch.gradient_norms import PassNorms, squared_norm, squared_norm_of
from worker.torch.preconditioner import preconditioner_of

_SAMPLES = {"resnet32": 256, "resnet50": 64, "transformer": 64}  # of an iteration
_PARTS = 4  # micro-batches of it
_REPEATS = 31
_MOST_DIFFERENCE = 1e-4  # of a squared norm, relative


def run(setup: Setup) -> dict[str, Any]:
    """Each model's iterations, with an even share of the time."""
    return {
        name: _shares(name, 2 * _PARTS if setup.quick else samples, part)
        for (name, samples), part in setup.shared(_SAMPLES.items())
    }


def _shares(name: str, samples: int, setup: Setup) -> dict[str, Any]:
    ways: dict[str, Callable[[bool], object]] = {}
    for kind, optimize in {"plain": None, "adam": _adam}.items():
        slice_ = slice_of(name, _PARTS, samples // _PARTS, setup, optimize)
        ways[f"micro-batches, {kind}"] = lambda norms, slice_=slice_: slice_(1, norms)  # type: ignore[misc]
        ways[f"ranks, {kind}"] = _whole(name, samples, setup, optimize)
    result: dict[str, Any] = {"samples": samples, "difference": _difference(name, samples, setup)}
    if result["difference"] > _MOST_DIFFERENCE:
        raise AssertionError(f"{name}: squared norms differ by {result['difference']}, relative")
    for (way, iterate), part in setup.shared(ways.items()):
        result[way] = _share(iterate, part)
    return result


def _adam(parameters: Sequence[torch.Tensor]) -> torch.optim.Optimizer:
    """Return an optimiser that has taken the steps from which on it preconditions."""
    optimizer = torch.optim.Adam(parameters, lr=1e-9)
    for _ in range(STEPS):
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
    return optimizer


def _whole(name: str, samples: int, setup: Setup, optimize: Any) -> Callable[[bool], None]:
    """Return a function that computes a batch at once, and norms as a rank's hook does."""
    workload = workloads(setup.quick)[name]
    model = workload.make().to(setup.device)
    inputs, classes = workload.batch(samples, setup.device)
    parameters = list(model.parameters())
    preconditioner = None if optimize is None else preconditioner_of(optimize(parameters))

    def iterate(norms: bool) -> None:
        model.zero_grad()
        nn.functional.cross_entropy(model(inputs).flatten(0, -2), classes.flatten()).backward()
        gradients = [p.grad for p in parameters if p.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        if norms:
            diagonal = preconditioner.flat(parameters, gradients, 0) if preconditioner is not None else None
            for _ in range(2):
                squared_norm(flat, diagonal)

    return iterate


def _difference(name: str, samples: int, setup: Setup) -> float:
    """Return the relative error of a pass's squared norm, by the gradient that it leaves."""
    workload = workloads(setup.quick)[name]
    model = workload.make().to(setup.device)
    inputs, classes = workload.batch(samples, setup.device)
    parameters = list(model.parameters())
    norms = PassNorms(parameters)
    most = 0.0
    for diagonals in ([None] * len(parameters), [torch.rand_like(p).flatten() for p in parameters]):
        model.zero_grad()
        norms.begin(diagonals)
        nn.functional.cross_entropy(model(inputs).flatten(0, -2), classes.flatten()).backward()
        by_hooks = float(norms.take())
        left = [p.grad for p in parameters]
        factors = [1.0 if one is None else one.double() for one in diagonals]
        pairs = [(g.flatten().double(), f) for g, f in zip(left, factors, strict=True) if g is not None]
        expected = sum(float((gradient * factor).square().sum()) for gradient, factor in pairs)
        for told in (by_hooks, float(squared_norm_of(left, diagonals))):
            most = max(most, abs(told - expected) / expected)
    return most


def _share(iterate: Callable[[bool], object], setup: Setup) -> dict[str, float]:
    """Time iterations without norms and with them, in turn."""
    taken: dict[bool, list[float]] = {False: [], True: []}
    for repeat in range(2 if setup.quick else _REPEATS):
        for norms in taken:
            began = setup.now()
            iterate(norms)
            seconds = setup.now() - began
            if repeat:  # the first is a warm-up
                taken[norms].append(seconds)
        if repeat > 2 and setup.left < 0:
            break
    without, with_norms = median(taken[False]), median(taken[True])
    return {"seconds": without, "seconds_with_norms": with_norms, "share": with_norms / without - 1}
