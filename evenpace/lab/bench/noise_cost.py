"""The cost of measuring the gradient noise, as a share of an iteration of a worker, on one core.

The norms are taken of a model's own gradient, by the code that takes them in training, and timed beside the
iteration itself: a difference of a hundredth between two whole iterations would be lost in their spread.
"""

import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn

from evenpace.lab.models.resnet import ResNet32
from evenpace.lab.models.transformer import ByteTransformer
from evenpace.lab.terminal import make_table
from evenpace.lab.workloads.text import byte_loss
from evenpace.reports import files
from idl.layout import Group, Layout
from ps.gradient_norms import NormMeter
from worker.torch.gradient_norms import PassNorms, squared_norm

_SLICE, _MICRO_BATCH = 32, 8  # samples
_CONTEXT = 64  # bytes of a text


def run(repeats: int, json_path: Path | None = None) -> dict[str, Any]:
    """Time iterations and norms of ResNet-32 and of the transformer, and print the shares.

    A worker has 32 samples, in four micro-batches where there are some. *Parameter server* is a shard with
    all parameters, for each worker that pushes; *ranks* is the hook of one rank, of its own gradient and of
    the sum; *micro-batches* are this worker's.

    Args:
        repeats: Medians are over as many.
        json_path: File for the figures.

    Returns:
        By model: parameters, seconds of an iteration at once and in micro-batches, and by way the seconds of
        the norms and their share of it.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        figures = {name: _figures(make, repeats) for name, make in _MODELS.items()}
    finally:
        torch.set_num_threads(threads)
    table = make_table(
        "Norms of gradients in an iteration of 32 samples on one core, ms",
        *("model", "parameters", "iteration", "in micro-batches", *_WAYS, "largest share"),
    )
    for name, its in figures.items():
        norms = its["norms"]
        times = [f"{norms[way]['seconds'] * 1e3:.3f}" for way in _WAYS]
        most = max(norms[way]["share"] for way in _WAYS)
        iteration = [f"{its[key] * 1e3:.1f}" for key in ("seconds", "seconds_in_micro_batches")]
        table.add_row(name, f"{its['parameters']:,}", *iteration, *times, f"{most:.2%}")
    Console().print(table)
    if json_path is not None:
        files.write_json(figures, json_path)
    return figures


def _figures(make: "_Make", repeats: int) -> dict[str, Any]:
    torch.manual_seed(1)
    model, loss_of = make()
    parameters = list(model.parameters())

    def iterate(size: int) -> None:
        model.zero_grad()
        for _ in range(_SLICE // size):
            loss_of(size).backward()  # type: ignore[no-untyped-call]

    seconds, in_micro_batches = (_median(partial(iterate, size), repeats) for size in (_SLICE, _MICRO_BATCH))
    gradients = [p.grad for p in parameters if p.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    meter = NormMeter(Layout("float32", "sgd", (Group(len(flat), {"lr": 0.1}),)))
    pieces = list(torch.split(flat, 2**16))
    passes = PassNorms(parameters)

    def at_shard() -> None:  # a worker's part: its own gradient, and once for all of them their mean
        for _ in range(2):
            for piece in pieces:
                meter.squares(0, piece)

    def in_hook() -> None:
        for _ in range(2):
            squared_norm(flat)

    def over_micro_batches() -> None:
        for _ in range(_SLICE // _MICRO_BATCH):
            passes.begin((None,) * len(gradients))
            for number, gradient in enumerate(gradients):
                passes.add(number, gradient)
            passes.take()

    ways = dict(zip(_WAYS, (at_shard, in_hook, over_micro_batches), strict=True))
    norms = {way: _median(function, 10 * repeats) for way, function in ways.items()}
    return {
        "parameters": len(flat),
        "seconds": seconds,
        "seconds_in_micro_batches": in_micro_batches,
        "norms": {
            way: {"seconds": taken, "share": taken / (in_micro_batches if way == _WAYS[-1] else seconds)}
            for way, taken in norms.items()
        },
    }


def _resnet() -> tuple[nn.Module, Callable[[int], torch.Tensor]]:
    model, images = ResNet32(), torch.randn(_SLICE, 3, 32, 32)
    labels = torch.randint(10, (_SLICE,))
    return model, lambda count: nn.functional.cross_entropy(model(images[:count]), labels[:count])


def _transformer() -> tuple[nn.Module, Callable[[int], torch.Tensor]]:
    model, text = ByteTransformer(_CONTEXT), torch.randint(256, (_SLICE, _CONTEXT + 1))
    return model, lambda count: byte_loss(model(text[:count, :-1]), text[:count, 1:])


def _median(function: Callable[[], None], repeats: int) -> float:
    function()
    taken = []
    for _ in range(repeats):
        began = time.perf_counter()
        function()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


_Make = Callable[[], tuple[nn.Module, Callable[[int], torch.Tensor]]]  # a model, and its loss of n samples
_WAYS = ("parameter server", "ranks", "micro-batches")
_MODELS = {"ResNet-32": _resnet, "transformer": _transformer}
