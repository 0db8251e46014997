"""One worker of `evenpace lab bench micro-batches`: times iterations, or measures the memory that they take.

Plain accumulation is PyTorch's own: the same samples in the same micro-batches, each loss divided by their
number, and a step of the local optimiser. Both loops keep a loss until the next one is there, as scripts do
that log it: without, the C library hands more of each pass's memory back to the system, and takes longer. It
writes its measurements as JSON to stdout.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import evenpace
from lab.script_options import read_options
from lab.workloads.by_name import Training
from lab.workloads.common import Workload, warm_up
from worker.data.source import load
from worker.parent import end_with_parent

_WARM_UP = 2  # iterations that do not count


def main() -> None:
    """Measure, and write the measurements."""
    options = read_options()
    end_with_parent(options.parent)
    torch.set_num_threads(1)
    training = Training(options.workload, tuple(options.options))
    made = training.options()
    measured = _memory(training, made, options) if options.memory else _times(training, made, options)
    sys.stdout.write(json.dumps(measured) + "\n")


def _times(training: Training, made: argparse.Namespace, options: argparse.Namespace) -> dict[str, Any]:
    """Return the seconds of each iteration, and of its loop over micro-batches, of both in turns."""
    plain, ours = training.make(made), training.make(made)
    loader = _loader(ours, options)
    iterations: dict[str, list[tuple[float, float]]] = {"plain": [], "evenpace": []}
    for number, batch in enumerate(_batches(loader, options.iterations + _WARM_UP)):
        parts = [part.indices.tolist() for part in batch.part.micro_batches]
        turns: dict[str, Callable[[], tuple[float, float]]] = {
            "plain": lambda parts=parts: _plain(plain, parts),  # type: ignore[misc]
            "evenpace": lambda batch=batch: _ours(ours, batch),  # type: ignore[misc]
        }
        for name in turns if number % 2 else reversed(turns):
            iterations[name].append(turns[name]())
    return {name: taken[_WARM_UP:] for name, taken in iterations.items()}


def _memory(training: Training, made: argparse.Namespace, options: argparse.Namespace) -> dict[str, Any]:
    """Return the bytes by which memory grows at most from the model's making to the training's end."""
    workload = training.make(made)
    model = workload.model
    before = _resident("VmRSS") - sum(p.numel() * p.element_size() for p in model.parameters())
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    if options.memory == "plain":
        samples = list(range(options.micro_batch))
        for _ in range(options.iterations):
            _plain(workload, [samples] * options.number)
    else:
        for batch in _batches(_loader(workload, options), options.iterations):
            _ours(workload, batch)
    return {"bytes": _resident("VmHWM") - before}


def _loader(workload: Workload, options: argparse.Namespace) -> evenpace.torch.DataLoader:
    """Make the loader, whose optimiser and statistics are at the parameter server."""
    evenpace.connect(options.manager, [options.ps])
    warm_up(workload)
    loader = evenpace.torch.DataLoader(
        workload.train_set,
        options.micro_batch * options.number,
        shuffle=True,
        drop_last=True,
        micro_batch=options.micro_batch,
        collate_fn=workload.collate,
    )
    evenpace.torch.distribute(workload.optimizer, loader, workload.model)
    return loader


def _batches(loader: evenpace.torch.DataLoader, iterations: int) -> Iterator[Any]:
    left = iterations
    while True:
        for batch in loader:
            yield batch
            left -= 1
            if not left:
                return


def _plain(workload: Workload, parts: list[list[int]]) -> tuple[float, float]:
    """Accumulate over micro-batches and take a step; return the seconds of the loop and of both."""
    began = time.perf_counter()
    workload.optimizer.zero_grad()
    for indices in parts:
        inputs, targets = workload.collate(load(workload.train_set, indices))
        loss = workload.loss(workload.model(inputs), targets) / len(parts)
        loss.backward()
    done = time.perf_counter()
    workload.optimizer.step()
    return done - began, time.perf_counter() - began


def _ours(workload: Workload, batch: Any) -> tuple[float, float]:
    """Do the same by `micro_batches`, with a step at the parameter server."""
    began = time.perf_counter()
    workload.optimizer.zero_grad()
    for inputs, targets in evenpace.torch.micro_batches(batch):
        loss = workload.loss(workload.model(inputs), targets)
        loss.backward()
    done = time.perf_counter()
    workload.optimizer.step()
    return done - began, time.perf_counter() - began


def _resident(field: str) -> int:
    """Return this process's resident memory in bytes: VmRSS now, VmHWM at its peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) * 1024


if __name__ == "__main__":
    main()
