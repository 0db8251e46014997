"""Throughput against the number of micro-batches at once, its fit, and the number that a manager chooses."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from batchsize_manager.policies.at_once import Gains
from batchsize_manager.policies.base import Participant
from idl.bounds import Bounds
from idl.records import WorkerRecord
from lab.gpu.setup import Setup, typical_seconds
from lab.gpu.slices import slice_of
from worker.torch.memory_watch import is_out_of_memory

_MODELS = {"resnet32": 32, "resnet50": 8}  # a small and a larger one; samples of a micro-batch
_MOST, _QUICK_MOST = 16, 2  # micro-batches at once
_ITERATIONS, _QUICK_ITERATIONS = 100, 8  # of the manager, at most


def run(setup: Setup) -> dict[str, Any]:
    """Each model's throughput, with an even share of the time; on a CPU, nothing is won."""
    result: dict[str, Any] = {}
    for (name, micro_batch), part in setup.shared(_MODELS.items()):
        result[name] = _measure(name, 2 if setup.quick else micro_batch, part)
        setup.forget()
    return result


def _measure(name: str, micro_batch: int, setup: Setup) -> dict[str, Any]:
    """Go through slices of as many micro-batches as are computed at once at most, by each number at once."""
    most = _QUICK_MOST if setup.quick else _MOST
    slice_ = slice_of(name, most, micro_batch, setup)
    expected = _gradient(slice_, 1)
    seconds: dict[int, float] = {}
    ended = "all were measured"
    at_once = 1
    while at_once <= most:
        if seconds and setup.left < 0:
            ended = "out of time"
            break
        try:
            difference = float((_gradient(slice_, at_once) - expected).abs().max() / expected.abs().max())
            if difference > _tolerance(setup):
                raise AssertionError(
                    f"{at_once} at once: gradients differ by {difference}, relative to the largest"
                )
            seconds[at_once] = typical_seconds(lambda k=at_once: slice_(k), setup)  # type: ignore[misc]
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            ended = "memory"
            break
        at_once *= 2
    throughput = {k: most * micro_batch / taken for k, taken in seconds.items()}
    return {
        "micro_batch": micro_batch,
        "ended_by": ended,
        "samples_per_s": {str(k): value for k, value in throughput.items()},
        "fit": _fit(throughput),
        "fastest": max(throughput, key=throughput.__getitem__),
        "chosen": _chosen(slice_, micro_batch, most, max(seconds), setup),
    }


def _gradient(slice_: Callable[[int], nn.Module], at_once: int) -> torch.Tensor:
    """Return the gradient of a slice, (elements,)."""
    gradients = [p.grad for p in slice_(at_once).parameters()]
    return torch.cat([g.flatten() for g in gradients if g is not None]).clone()


def _tolerance(setup: Setup) -> float:
    """Return the largest relative difference of gradients; kernels of a GPU may add up in any order."""
    return 1e-3 if setup.on_gpu else 0.0


def _fit(throughput: dict[int, float]) -> dict[str, float] | None:
    """Fit α ln k + β (JABAS, equation 1), in samples per second; None for a single number."""
    if len(throughput) < 2:
        return None
    measured = np.array(list(throughput.values()))
    logs = np.log(list(throughput))
    alpha, beta = np.polyfit(logs, measured, 1)
    error = np.abs(alpha * logs + beta - measured) / measured
    return {"alpha": float(alpha), "beta": float(beta), "mean_relative_error": float(error.mean())}


def _chosen(
    slice_: Callable[[int], nn.Module], micro_batch: int, number: int, most: int, setup: Setup
) -> dict[str, Any]:
    """Let the manager's policy try numbers up to `most` on slices that are computed as it says."""
    gains = Gains()
    gains.set_members([Participant("worker", Bounds(at_once=most))])
    tried: list[int] = []
    for _ in range(_QUICK_ITERATIONS if setup.quick else _ITERATIONS):
        at_once = gains.choose("worker", number)
        tried.append(at_once)
        if setup.left < 0 or most == 1:
            break
        taken = typical_seconds(lambda k=at_once: slice_(k), replace(setup, quick=True))  # type: ignore[misc]
        gains.observe({"worker": WorkerRecord(number, taken, at_once=at_once)})
        if len(tried) > 12 and len(set(tried[-12:])) == 1:  # longer than any trial
            break
    return {"at_once": tried[-1], "waves": -(-number // tried[-1]), "tried": sorted(set(tried))}
