"""Time what it costs to measure the gradient noise, beside an iteration.

Of ResNet-32 and of the transformer, with 32 samples on one core. The norms are taken of a model's own
gradient, by the code that takes them in training, and timed beside the iteration itself: a difference of a
hundredth between two whole iterations would be lost in their spread.

A worker has 32 samples, in four micro-batches where there are some. *Parameter server* is a shard with all
parameters, for each worker that pushes; *ranks* is the hook of one rank, of its own gradient and of the sum;
*micro-batches* are this worker's. With Adam there are no norms of micro-batches at the parameter server, so
that those are of ranks.

Example:
  evenpace lab bench noise --json noise-cost.json
"""

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import torch
from rich.console import Console
from torch import nn

from evenpace.local.terminal import make_table
from idl.layout import Group, Layout
from idl.preconditioning import STEPS
from idl.settings import Checked, Setting
from lab.models.resnet import ResNet32
from lab.models.transformer import ByteTransformer
from lab.workloads.text import byte_loss
from ps.gradient_norms import NormMeter
from worker.torch.gradient_norms import PassNorms, squared_norm
from worker.torch.preconditioner import Preconditioner

_SLICE, _MICRO_BATCH = 32, 8  # samples
_PIECE = 2**16  # elements that a shard is sent at once
_CONTEXT = 64  # bytes of a text


@dataclass(frozen=True)
class NoiseCostConfig(Checked):
    """What is timed, and how often (InvalidRequestError: a value is out of its range)."""

    repeats: Annotated[int, Setting("Of each figure.", least=1)] = 9
    adam: Annotated[bool, Setting("Precondition the gradients, as with Adam.")] = False


def run(config: NoiseCostConfig, console: Console) -> dict[str, Any]:
    """Time iterations and norms, and print the shares of the norms' ways in an iteration, by model."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        models = {name: _figures(make, config) for name, make in _MODELS.items()}
    finally:
        torch.set_num_threads(threads)
    table = make_table(
        "Norms of gradients in an iteration of 32 samples on one core, ms",
        *("model", "parameters", "iteration", "in micro-batches", *_WAYS, "largest share"),
    )
    for name, its in models.items():
        norms = its["norms"]
        times = [f"{norms[way]['seconds'] * 1e3:.3f}" for way in _WAYS]
        most = max(norms[way]["share"] for way in _WAYS)
        iteration = [f"{its[key] * 1e3:.1f}" for key in ("seconds", "seconds_in_micro_batches")]
        table.add_row(name, f"{its['parameters']:,}", *iteration, *times, f"{most:.2%}")
    Console().print(table)
    return {"models": models}


def _figures(make: "_Make", config: NoiseCostConfig) -> dict[str, Any]:
    repeats, adam = config.repeats, config.adam
    torch.manual_seed(1)
    model, loss_of = make()
    parameters = list(model.parameters())

    def iterate(size: int) -> None:
        model.zero_grad()
        for _ in range(_SLICE // size):
            loss_of(size).backward()

    seconds, in_micro_batches = (_median(partial(iterate, size), repeats) for size in (_SLICE, _MICRO_BATCH))
    gradients = [p.grad for p in parameters if p.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    meter = NormMeter(Layout("float32", "adam" if adam else "sgd", (Group(len(flat), {"lr": 0.1}),)))
    passes = PassNorms(parameters)
    at_ranks: Preconditioner | None = None
    of_shard, of_ranks = (torch.optim.Adam(own) for own in ([nn.Parameter(flat.clone())], parameters))
    of_shard.param_groups[0]["params"][0].grad = flat
    if adam:
        for _ in range(STEPS):
            of_shard.step()
            of_ranks.step()
        at_ranks = Preconditioner(of_ranks)

    def at_shard(step: int) -> None:  # a worker's part: its own gradient, and once for all of them their mean
        meter.prepare(of_shard, step)
        for _ in range(2):
            for begin in range(0, len(flat), _PIECE):
                meter.squares(begin, flat[begin : begin + _PIECE])

    def in_hook(step: int) -> None:
        diagonal = at_ranks.flat(parameters, gradients, step) if at_ranks is not None else None
        for _ in range(2):
            squared_norm(flat, diagonal)

    def over_micro_batches(step: int) -> None:
        diagonals: Sequence[torch.Tensor | None] | None = None
        if at_ranks is not None:
            diagonals = at_ranks.of(parameters, step)
        for _ in range(_SLICE // _MICRO_BATCH):
            passes.begin(diagonals or (None,) * len(gradients))
            for number, gradient in enumerate(gradients):
                passes.add(number, gradient)
            passes.take()

    steps = itertools.count(STEPS)

    def some(way: Callable[[int], None]) -> None:
        for step in itertools.islice(steps, STEPS):
            way(step)

    ways = dict(zip(_WAYS, (at_shard, in_hook, over_micro_batches), strict=True))
    # A preconditioner holds for STEPS steps: all of these are timed together.
    norms = {way: _median(partial(some, function), repeats) / STEPS for way, function in ways.items()}
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
