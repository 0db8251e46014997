"""Common part of all workloads: the options, the training loop with evenpace's lines, and the evaluation.

It does not know what is trained: a `Workload` has the model and the data.
"""

import argparse
import copy
import json
import logging
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset, Subset, default_collate

import evenpace
from lab.data import DataError
from worker.torch.loader import MapStyleDataset

log = logging.getLogger(__name__)

_EVALUATION_BATCH = 256  # samples
_WARM_UP = 16  # samples of the first pass


@dataclass(frozen=True)
class Workload:
    """Model, data and optimiser of a training."""

    name: str  # name of the workload, such as "svm"
    data: str  # description of the data, for people
    train_set: MapStyleDataset  # map-style data set of (input, target)
    test_set: MapStyleDataset  # map-style data set of (input, target)
    model: nn.Module  # model: inputs of a batch in, outputs out
    # Loss: outputs and targets in, the mean over the samples out.
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    # Prediction: outputs in, values to be compared with the targets out.
    predict: Callable[[torch.Tensor], torch.Tensor]
    optimizer: torch.optim.Optimizer  # optimiser of the model's parameters
    # Makes a batch (inputs, targets) from a list of samples.
    collate: Callable[[list[Any]], Any] = default_collate
    # True if the loss is that of a language model, so that exp(loss) is its perplexity.
    perplexity: bool = False


def _number(kind: type[int | float], least: float, below: float, allowed: str) -> Callable[[str], Any]:
    """Return a reader of an option's value, which tells what is allowed."""

    def read(text: str) -> float:
        try:
            number: float = kind(text)
        except ValueError:
            number = math.nan
        if not least <= number < below:
            raise argparse.ArgumentTypeError(f"{text!r}: must be {allowed}")
        return number

    return read


positive = _number(int, 1, math.inf, "a whole number from 1")
_count = _number(int, 0, math.inf, "a whole number from 0")
_probability = _number(float, 0, 1, "from 0 to below 1")
_amount = _number(float, 0, math.inf, "a finite number from 0")


def options_parser(
    description: str, *, data: str, epochs: int, batch_size: int, lr: float, weight_decay: float
) -> argparse.ArgumentParser:
    """Make a parser of the options that all workloads have; the first word of `data` is a default."""
    parser = argparse.ArgumentParser(
        description=description,
        epilog="Start it with `evenpace worker --manager HOST:PORT --ps HOST:PORT SCRIPT WORKLOAD OPTIONS`, "
        "with the same options for every worker (but for --test-samples, --metrics and --save, which "
        "concern this worker alone).",
    )
    add = parser.add_argument
    add("--data", default=data.split()[0], help=f"{data} (default: %(default)s)")
    length = parser.add_mutually_exclusive_group()
    length.add_argument(
        "--epochs", type=positive, default=epochs, help="passes over the data (default: %(default)s)"
    )
    length.add_argument("--iterations", type=positive, help="batches to train on, instead of epochs")
    add(
        "--batch-size",
        type=positive,
        default=batch_size,
        help="samples of a whole batch, over all workers (default: %(default)s)",
    )
    add("--lr", type=_amount, default=lr, help="learning rate (default: %(default)s)")
    add("--weight-decay", type=_amount, default=weight_decay, help="L2 penalty (default: %(default)s)")
    add(
        "--micro-batch",
        type=positive,
        metavar="SAMPLES",
        help="compute so many samples together, on whichever worker, so that the result does not depend on "
        "how batches are split",
    )
    add("--seed", type=_count, default=1, help="of first parameters and order (default: %(default)s)")
    add("--samples", type=positive, help="train on the first so many samples only")
    add("--test-samples", type=_count, help="evaluate on the first so many only; 0 for no evaluation")
    add("--metrics", type=Path, metavar="FILE", help="where the evaluation goes, as JSON (default: stdout)")
    add("--save", type=Path, metavar="FILE", help="save the trained model's state_dict here")
    add("--threads", type=positive, default=1, help="of PyTorch (default: %(default)s)")
    return parser


def add_network_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that all networks have."""
    add = parser.add_argument
    add("--dropout", type=_probability, default=0.0, help="probability that a unit is dropped (default: 0)")
    add("--dtype", choices=["float32", "float64"], default="float32", help="default: %(default)s")


def dtype_of(options: argparse.Namespace) -> torch.dtype:
    """Return the type of parameters and images that the options of a network ask for."""
    dtype: torch.dtype = getattr(torch, options.dtype)
    return dtype


def train(workload: Workload, options: argparse.Namespace) -> dict[str, float] | None:
    """Train as one worker of the job; without a parameter server, in `DistributedDataParallel`.

    Returns iteration and seconds at the end; None where this worker was released before.
    """
    warm_up(workload)
    model, optimizer = workload.model, workload.optimizer
    loader = evenpace.torch.DataLoader(
        workload.train_set,
        options.batch_size,
        shuffle=True,
        seed=options.seed,
        micro_batch=options.micro_batch,
        collate_fn=workload.collate,
    )
    forward: nn.Module = model
    if not loader.session.config.shards:
        distributed.init_process_group("gloo")
        forward = evenpace.torch.balance(DistributedDataParallel(model), loader, optimizer)
    else:
        # Without micro-batches, batch normalisation's statistics stay each worker's own.
        evenpace.torch.distribute(optimizer, loader, model if options.micro_batch else None)
    parts = evenpace.torch.micro_batches if options.micro_batch else lambda batch: (batch,)
    per_epoch = loader.slices.spec.iterations_per_epoch
    epochs = math.ceil(options.iterations / per_epoch) if options.iterations else options.epochs
    end = options.iterations or epochs * per_epoch

    began = time.perf_counter()
    for batch in _batches(loader, epochs, end):
        optimizer.zero_grad()
        for inputs, targets in parts(batch):
            workload.loss(forward(inputs), targets).backward()
        optimizer.step()
    trained = None
    if loader.session.released is None:
        # Of the job, not of this worker: it may have joined late, or had no part in a small batch.
        trained = {
            "iteration": min(_iteration(loader), end),
            "seconds": round(time.perf_counter() - began, 3),
        }
    if options.save is not None and trained is not None:
        new = options.save.with_name(
            f"{options.save.name}.{os.getpid()}"
        )  # others may save theirs there, too
        torch.save(model.state_dict(), new)
        new.replace(options.save)
    if distributed.is_initialized():
        distributed.barrier()
        del forward  # so that nothing holds the process group, whose threads end with it
        distributed.destroy_process_group()
    return trained


def report(workload: Workload, trained: dict[str, float], metrics: Path | None) -> None:
    """Evaluate the model, and write a line of JSON about it to `metrics`, or to stdout.

    It has `workload`, `data`, `iteration`, `seconds` (since this worker's training began), `loss` (the mean
    over the test samples, without the penalty of weight decay), `accuracy` (from 0 to 1), and `perplexity`
    where the workload is a language model.
    """
    evaluated = {"workload": workload.name, "data": workload.data, **trained, **evaluate(workload)}
    text = json.dumps(evaluated) + "\n"
    if metrics is None:
        sys.stdout.write(text)
        sys.stdout.flush()
    else:
        metrics.write_text(text)


@torch.no_grad()
def evaluate(workload: Workload) -> dict[str, float]:
    """Return the model's loss and accuracy on the test set, and its perplexity if it is a language model."""
    model = workload.model
    loader = torch.utils.data.DataLoader(
        cast(Dataset[Any], workload.test_set), _EVALUATION_BATCH, collate_fn=workload.collate
    )
    loss = correct = 0.0
    samples = predictions = 0
    model.eval()
    for inputs, targets in loader:
        outputs = model(inputs)
        loss += float(workload.loss(outputs, targets)) * len(targets)
        samples += len(targets)
        correct += float((workload.predict(outputs) == targets).sum())
        predictions += targets.numel()
    model.train()
    results = {"loss": loss / samples, "accuracy": correct / predictions}
    if workload.perplexity:
        perplexity = torch.tensor(results["loss"]).exp()  # math.exp fails where it is infinite
        results["perplexity"] = float(perplexity)
    return results


def first_samples(dataset: MapStyleDataset, samples: int | None, option: str) -> MapStyleDataset:
    """Return the first samples, all where the option has no number (DataError: there are fewer)."""
    if samples is None:
        return dataset
    if samples > len(dataset):
        raise DataError(f"{option} {samples}: the data has {len(dataset)}.")
    return Subset(cast(Dataset[Any], dataset), range(samples))


def _batches(loader: evenpace.torch.DataLoader, epochs: int, end: int) -> Iterator[Any]:
    """Yield this worker's parts of the batches before iteration `end` of the job."""
    for _ in range(epochs):
        for batch in loader:
            # Checked on both sides: a worker may have no part in the last batch, and be past it here.
            if _iteration(loader) >= end:
                return
            yield batch
            if loader.session.released is not None or _iteration(loader) >= end:
                return


def _iteration(loader: evenpace.torch.DataLoader) -> int:
    """Return the job's current iteration, which is the number of finished ones."""
    return loader.session.join().iteration


def warm_up(workload: Workload) -> None:
    """Make a first pass, whose preparations would take long under a worker's CPU limit."""
    model = copy.deepcopy(workload.model)  # a pass moves the running means of batch normalisation
    samples = [workload.train_set[i] for i in range(min(_WARM_UP, len(workload.train_set)))]
    inputs, targets = workload.collate(samples)
    workload.loss(model(inputs), targets).backward()
