"""Train by stock DDP, by evenpace with all-reduce and with a parameter server, and compare times.

Model, data, batches and iterations are the same. The trainings take turns on workers with CPU limits.

Example:
  evenpace lab bench train --shares 0.8,0.4,0.2,0.1 --json train.json
"""

import contextlib
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

from batchsize_manager.policies import POLICIES
from batchsize_manager.policies.solver import split_evenly_in_time
from batchsize_manager.policies.step_times import StepTimeCurves, StepTimes
from evenpace.local.cluster import LOOPBACK, LocalCluster, share_cpus
from evenpace.local.terminal import make_table
from idl.bounds import Bounds
from idl.errors import InvalidRequestError
from idl.settings import Setting, check_settings
from lab.experiments.comparison import Evaluator
from lab.experiments.scheme_run import ParameterSnapshot
from lab.fields import ImageData, Repeats, Seed, Shares, whole_numbers
from lab.network import WorkerNetwork
from lab.script_options import as_argument
from lab.workloads.by_name import Training


@dataclass(frozen=True)
class TrainConfig:
    """The trainings to run (InvalidRequestError: a value is not allowed)."""

    shares: Shares = (0.8, 0.4, 0.2, 0.1)
    data: ImageData = "digits"
    hidden: Annotated[
        tuple[int, ...],
        Setting(
            "Units of further layers, the first of 2,048 inputs for digits.",
            metavar="UNITS,...",
            read=partial(whole_numbers, "hidden", least=1),
        ),
    ] = ()
    samples: Annotated[int | None, Setting("Train on the first so many images.  [default: all]", least=1)] = (
        None
    )
    rate: Annotated[
        float, Setting("MB/s of each worker's link, each way; 0: without a limit.", least=0, below=1e5)
    ] = 0.0
    bucket_mb: Annotated[
        float, Setting("MiB of a DDP's buckets (`bucket_cap_mb`), stock or not.", above=0, below=1e5)
    ] = 25.0
    policy: Annotated[
        str | None, Setting("Policy of evenpace's trainings.  [default: the manager's]", choices=POLICIES)
    ] = None
    # Passes over the data; each leaves its last, smaller batch out.
    epochs: Annotated[int, Setting("Passes over the data.", least=1)] = 15
    # Samples of a batch, over all workers; a multiple of their number.
    total_batch_size: Annotated[int, Setting("Over all workers.", name="batch-size", least=1)] = 716
    repeats: Repeats = 3
    # From 0 to 1; the time until an epoch ends with it is printed.
    target_accuracy: Annotated[float, Setting("On the test set.", least=0, most=1)] = 0.9
    seed: Seed = 1

    def __post_init__(self) -> None:
        check_settings(self)
        if len(self.shares) < 2:
            raise InvalidRequestError(f"shares {self.shares}: give at least two workers")
        if self.total_batch_size % len(self.shares):
            raise InvalidRequestError(
                f"batch size {self.total_batch_size}: must be a multiple of {len(self.shares)}, the workers, "
                f"since stock DDP takes the plain mean over them"
            )


MODES = {"ddp": "stock DDP", "all-reduce": "all-reduce", "ps": "parameter server"}
_FEW = 12  # iterations in which stock DDP takes one sample a worker


def run(config: TrainConfig, console: Console) -> dict[str, Any]:
    """Train all ways in turn, by workers of `against_ddp_worker`; print and return the figures."""
    data = config.data.partition(":")[0]
    evaluator = Evaluator(Training("digits", _workload(config)))
    if config.total_batch_size > evaluator.samples:
        raise InvalidRequestError(
            f"batch size {config.total_batch_size}: there are {evaluator.samples} training images of {data}"
        )
    taken: dict[str, list[dict[str, Any]]] = {mode: [] for mode in MODES}
    ranks = len(config.shares)
    single = replace(config, total_batch_size=ranks, samples=min(_FEW * ranks, evaluator.samples), epochs=1)
    singles = []  # CPU seconds of each rank for a batch of one sample
    turns = [mode for _ in range(config.repeats) for mode in (*MODES, None)]
    for mode in track(turns, description=f"{ranks} workers", console=console):
        if mode is None:
            singles.append([float(_settled(rank["cpu"]).mean()) for rank in _measure(single, "ddp")])
        else:
            taken[mode].append(_summary(config, evaluator, _measure(config, mode)))
    figures = _compare(config, data, taken, singles)
    _print(console, figures)
    return figures


def _measure(config: TrainConfig, mode: str) -> list[Mapping[str, NDArray[Any]]]:
    ranks = len(config.shares)
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        places: list[list[str]] = [[]] * ranks
        host = LOOPBACK
        if config.rate:
            network = stack.enter_context(WorkerNetwork(ranks))
            for rank in range(ranks):
                network.limit(rank, config.rate * 8)
            host = network.host
            places = [network.prefix(rank) for rank in range(ranks)]
        shards = 1 if mode == "ps" else 0
        cluster = LocalCluster(folder, workers=ranks, shards=shards, host=host, policy=config.policy)
        stack.callback(cluster.stop)
        services: dict[str, Any] = {}
        if mode != "ddp":
            cluster.start()
            services = {"manager": str(cluster.manager), "ps": [*map(str, cluster.shard_addresses)]}
        for rank, share in enumerate(share_cpus(config.shares, "auto")):
            options = as_argument(
                mode=mode,
                store=folder / "store",
                share=share.cores,
                limit_kind=share.kind,
                name=cluster.limit_name(str(rank)),
                out=folder / f"{rank}.npz",
                rank=rank,
                ranks=ranks,
                cpu=share.cpu,
                parent=os.getpid(),
                epochs=config.epochs,
                batch_size=config.total_batch_size,
                bucket_mb=config.bucket_mb,
                seed=config.seed,
                workload=_workload(config),
                **services,
            )
            line = [sys.executable, "-m", "lab.bench.against_ddp_worker", options]
            cluster.start_other(f"worker-{rank}", [*places[rank], *line])
        cluster.wait()
        return [dict(np.load(folder / f"{rank}.npz")) for rank in range(ranks)]


def _summary(
    config: TrainConfig, evaluator: Evaluator, ranks: Sequence[Mapping[str, NDArray[Any]]]
) -> dict[str, Any]:
    """Return the figures of one run; of the iterations' ends, which all ranks share, rank 0's are taken."""
    ends = ranks[0]["ends"]
    settled = _settled(np.diff(ends, prepend=0.0))
    cpu = [float(_settled(rank["cpu"]).mean()) for rank in ranks]
    per_epoch = len(ends) // config.epochs
    epochs = range(per_epoch, len(ends) + 1, per_epoch)
    snapshots = [
        ParameterSnapshot(float(ends[end - 1]), end, parameters)
        for end, parameters in zip(epochs, ranks[0]["snapshots"], strict=True)
    ]
    accuracies = [point["accuracy"] for point in evaluator.curve(snapshots)]
    reached = [i for i, accuracy in enumerate(accuracies) if accuracy >= config.target_accuracy]
    return {
        "iteration_s_median": float(np.median(settled)),
        "time_to_accuracy_s": snapshots[reached[0]].seconds if reached else None,
        "time_s": float(ends[-1]),
        "accuracy": accuracies[-1],
        "batch_sizes": [int(rank["sizes"][-1]) for rank in ranks],
        "cpu_s": cpu,
        "share_used": sum(cpu) / (sum(config.shares) * float(settled.mean())),
        "parameters": snapshots[-1].parameters,
        "iterations": len(ends),
    }


def _compare(
    config: TrainConfig,
    data: str,
    taken: Mapping[str, Sequence[Mapping[str, Any]]],
    singles: Sequence[Sequence[float]],
) -> dict[str, Any]:
    """Return medians over the repeats; ratios are taken within each, where the machine differs least."""
    runs = {}
    parameters = [repeat["parameters"] for repeats in taken.values() for repeat in repeats]
    bounds = [
        allowed(config, stock["cpu_s"], single, parameters[0].nbytes)
        for stock, single in zip(taken["ddp"], singles, strict=True)
    ]
    for mode, repeats in taken.items():
        seconds, times, shares, whole, accuracies = (
            [repeat[key] for repeat in repeats]
            for key in ("iteration_s_median", "time_to_accuracy_s", "share_used", "time_s", "accuracy")
        )
        ratios = [stock["iteration_s_median"] / own for stock, own in zip(taken["ddp"], seconds, strict=True)]
        shortest = [bound[mode] for bound in bounds]
        of_allowed = [bound / own for bound, own in zip(shortest, seconds, strict=True)]
        runs[mode] = {
            "iteration_s_median": statistics.median(seconds),
            "allowed_s": statistics.median(shortest),
            "of_allowed": statistics.median(of_allowed),
            "of_alloweds": of_allowed,
            "share_used": statistics.median(shares),
            "cpu_s": np.median([repeat["cpu_s"] for repeat in repeats], 0).tolist(),
            "iteration_s_medians": seconds,
            "speedup": statistics.median(ratios),
            "speedups": ratios,
            "time_to_accuracy_s": statistics.median(times) if None not in times else None,
            "time_s": statistics.median(whole),
            "accuracy": statistics.median(accuracies),
            "batch_sizes": repeats[-1]["batch_sizes"],
        }
    return asdict(config) | {
        "against": "ddp",
        "data": data,
        "model_parameters": parameters[0].size,
        "iterations": taken["ddp"][0]["iterations"],
        "single_cpu_s": np.median(singles, 0).tolist(),
        "runs": runs,
        "parameters_max_abs_diff": max(float(np.abs(p - parameters[0]).max()) for p in parameters),
    }


def _workload(config: TrainConfig) -> tuple[str, ...]:
    hidden = ",".join(map(str, config.hidden))
    samples = () if config.samples is None else ("--samples", str(config.samples))
    return "--data", config.data, "--hidden", hidden, "--seed", str(config.seed), *samples


def _settled(of_iterations: NDArray[Any]) -> NDArray[Any]:
    """Return the second half of the iterations, in which splits have settled."""
    return of_iterations[len(of_iterations) // 2 :]


def allowed(
    config: TrainConfig, whole: Sequence[float], single: Sequence[float], size: int
) -> dict[str, float]:
    """Return the seconds of an iteration that shares and links allow, by what stock DDP costs each worker.

    That is f + c b seconds of CPU for a batch of b samples. By a share of a core it takes so much longer, and
    the bound is the slowest worker's time in the best split; or, if that is longer, that of the model's
    transfer: 2 (n - 1) / n times each way in a ring, once to and from a parameter server.

    Args:
        whole: CPU seconds of stock DDP for each worker's equal part of the batch; (workers,).
        single: The same for batches of one sample.
        size: Bytes of the model.
    """
    ranks, total = len(config.shares), config.total_batch_size
    part = total / ranks
    even, least, shares = np.array([whole, single, config.shares])
    per_sample = np.maximum(even - least, 0.0) / max(part - 1, 1)
    fixed = np.maximum(even - per_sample * part, 0.0)
    seconds = ((fixed + np.multiply.outer((1, total), per_sample)) / shares).T.tolist()  # (workers, 2)
    curves = StepTimeCurves([StepTimes((1, total), tuple(of)) for of in seconds])
    counts = split_evenly_in_time(curves, total, [Bounds(1, total)] * ranks)
    computing = max(map(curves.time, range(ranks), counts))
    moving = size / (config.rate * 1e6) if config.rate else 0.0
    return {
        "ddp": float((even / shares).max()),
        "all-reduce": max(computing, moving * 2 * (ranks - 1) / ranks),
        "ps": max(computing, moving),
    }


def _print(console: Console, figures: Mapping[str, Any]) -> None:
    shares = ", ".join(f"{share:g}" for share in figures["shares"])
    links = f" and links of {figures['rate']:g} MB/s" if figures["rate"] else ""
    target = f"s to {figures['target_accuracy']:.0%}"
    console.print(
        f"{figures['iterations']} iterations of {figures['total_batch_size']} samples of {figures['data']} "
        f"by a model of {figures['model_parameters']:,} parameters, and workers limited to {shares} of a "
        f"core{links}"
    )
    columns = ("iteration ms", "allowed ms", "of it", "shares used", "speed-up", target, "accuracy")
    title = f"Against stock DDP, medians of {figures['repeats']}"
    table = make_table(title, "training", *columns, "batch sizes")
    for mode, name in MODES.items():
        of = figures["runs"][mode]
        reached = of["time_to_accuracy_s"]
        table.add_row(
            name,
            f"{of['iteration_s_median'] * 1e3:.0f}",
            f"{of['allowed_s'] * 1e3:.0f}",
            f"{of['of_allowed']:.2f}",
            f"{of['share_used']:.0%}",
            f"{of['speedup']:.2f}",
            "-" if reached is None else f"{reached:.1f}",
            f"{of['accuracy']:.1%}",
            " ".join(map(str, of["batch_sizes"])),
        )
    console.print(table)
    console.print(
        "Allowed is what shares and links would by the best split, with stock DDP's CPU time for a batch, if "
        "transfers and computing never waited for each other; shares used is the workers' CPU time, of what "
        "their shares allow. Times are of the second half of the iterations."
    )
    console.print(f"The final parameters differ by {figures['parameters_max_abs_diff']:.1e} at most.")
