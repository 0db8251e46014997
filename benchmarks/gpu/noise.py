"""Time that norms of gradients take, by which the gradient noise is measured, as a share of an iteration."""

import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Any

import torch
from torch import nn

from benchmarks.gpu.models import workloads
from benchmarks.gpu.setup import Setup
from worker.torch.gradient_norms import PassNorms, squared_norm

_SAMPLES = {"resnet32": 256, "resnet50": 64, "transformer": 64}  # of an iteration
_PARTS = 4  # micro-batches of it
_REPEATS = 31
_MOST_DIFFERENCE = 1e-4  # of a squared norm, relative


def run(setup: Setup) -> dict[str, Any]:
    """Each model's iterations, with an even share of the time."""
    result = {}
    for done, (name, samples) in enumerate(_SAMPLES.items()):
        share = setup.left / (len(_SAMPLES) - done)
        part = replace(setup, until=setup.until - setup.left + share)
        result[name] = _shares(name, 2 * _PARTS if setup.quick else samples, part)
    return result


def _shares(name: str, samples: int, setup: Setup) -> dict[str, Any]:
    workload = workloads(setup.quick)[name]
    torch.manual_seed(1)
    model = workload.make().to(setup.device)
    inputs, classes = workload.batch(samples, setup.device)
    parameters = list(model.parameters())
    norms = PassNorms(parameters)

    def backward(part: slice) -> None:
        nn.functional.cross_entropy(model(inputs[part]).flatten(0, -2), classes[part].flatten()).backward()

    def in_micro_batches(diagonals: Any) -> None:
        model.zero_grad()
        for begin in range(0, samples, samples // _PARTS):
            if diagonals is not None:
                norms.begin(diagonals)
            backward(slice(begin, begin + samples // _PARTS))
            norms.take()

    def whole(diagonals: Any) -> None:
        model.zero_grad()
        backward(slice(0, samples))
        flat = torch.cat([p.grad.flatten() for p in parameters if p.grad is not None])
        if diagonals is not None:
            diagonal = None if diagonals[0] is None else torch.cat(diagonals)
            for _ in range(2):
                squared_norm(flat, diagonal)

    plain = (None,) * len(parameters)
    adam = tuple(torch.rand(p.numel(), device=setup.device) for p in parameters)
    _check(model, norms, plain, lambda: backward(slice(0, samples)))
    _check(model, norms, adam, lambda: backward(slice(0, samples)))
    ways = {"micro-batches": in_micro_batches, "ranks": whole}
    result: dict[str, Any] = {"samples": samples, "parameters": sum(map(torch.numel, parameters))}
    cases = [(way, kind) for way in ways for kind in ("plain", "adam")]
    for done, (way, kind) in enumerate(cases):
        until = time.monotonic() + setup.left / (len(cases) - done)
        result[f"{way}, {kind}"] = _share(ways[way], plain if kind == "plain" else adam, until, setup)
    return result


def _check(model: nn.Module, norms: PassNorms, diagonals: Any, backward: Callable[[], None]) -> None:
    """Compare a pass's squared norm with that of the gradient that it leaves behind.

    Raises:
        AssertionError: They differ.
    """
    model.zero_grad()
    norms.begin(diagonals)
    backward()
    told = float(norms.take())
    left = [p.grad.flatten().double() for p in model.parameters() if p.grad is not None]
    factors = [1.0 if diagonal is None else diagonal.double() for diagonal in diagonals]
    expected = sum(float((g * factor).square().sum()) for g, factor in zip(left, factors, strict=True))
    if abs(told - expected) > _MOST_DIFFERENCE * expected:
        raise AssertionError(f"a squared norm is {told}, and {expected} of the gradient left behind")


def _share(iterate: Callable[[Any], None], diagonals: Any, until: float, setup: Setup) -> dict[str, float]:
    """Time iterations without norms and with them, in turn."""
    taken: dict[bool, list[float]] = {False: [], True: []}
    for repeat in range(2 if setup.quick else _REPEATS):
        for measured in taken:
            began = _now(setup)
            iterate(diagonals if measured else None)
            seconds = _now(setup) - began
            if repeat:  # the first is a warm-up
                taken[measured].append(seconds)
        if repeat > 2 and time.monotonic() > until:
            break
    without, with_norms = median(taken[False]), median(taken[True])
    return {"seconds": without, "seconds_with_norms": with_norms, "share": with_norms / without - 1}


def _now(setup: Setup) -> float:
    if setup.on_gpu:
        torch.cuda.synchronize(setup.device)
    return time.perf_counter()
