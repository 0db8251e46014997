"""Measured step times of GPUs against the batch size, and clusters made of them.

A file is a CSV with the columns `model,gpu,batch_size` and either `step_time_s` or `examples_per_s`. Between
two measured batch sizes times are interpolated in a line; a batch is never taken to be faster than a smaller
one. Nothing is made up outside of what was measured: the largest batch is what fits into the GPU's memory,
and the smallest is the least that it is given.
"""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from batchsize_manager.policies.step_times import StepTimes

_KEYS = ("model", "gpu", "batch_size")
_MEASURES = ("step_time_s", "examples_per_s")


GpuCurves = Mapping[str, Mapping[str, StepTimes]]
"""Step times by model, then by GPU."""


@dataclass(frozen=True)
class Cluster:
    """Workers with a GPU each that train a model together."""

    model: str  # name of the model
    workers: Mapping[str, StepTimes]  # step times of the workers, by name
    total: int  # samples of the whole batch

    def __post_init__(self) -> None:
        low = sum(times.bounds.minimum for times in self.workers.values())
        high = sum(times.bounds.maximum for times in self.workers.values())
        if not low <= self.total <= high:
            raise ValueError(
                f"total {self.total}: {self.model} was measured on {', '.join(self.workers)} "
                f"for {low} to {high} samples together"
            )

    @property
    def name(self) -> str:
        """Return the cluster's name: its model, GPUs and total, in words."""
        return f"{self.model} {self.total}: {', '.join(self.workers)}"


def make_cluster(curves: GpuCurves, model: str, gpus: Sequence[str], total: int | None = None) -> Cluster:
    """Make a cluster of GPUs; the second of two with the same name is called `NAME-2`.

    The whole batch has `total` samples, by default half of what fits into all GPUs' memory.
    """
    if model not in curves:
        raise ValueError(f"model {model!r}: measured are {', '.join(curves)}")
    workers: dict[str, StepTimes] = {}
    for gpu in gpus:
        if gpu not in curves[model]:
            raise ValueError(f"gpu {gpu!r}: {model} was measured on {', '.join(curves[model])}")
        same = sum(name.rpartition("-")[0] == gpu or name == gpu for name in workers)
        workers[f"{gpu}-{same + 1}" if same else gpu] = curves[model][gpu]
    fits = sum(times.bounds.maximum for times in workers.values())
    least = sum(times.bounds.minimum for times in workers.values())
    return Cluster(model, workers, max(least, fits // 2) if total is None else total)


def in_micro_batches(cluster: Cluster, size: int) -> Cluster:
    """Return a cluster whose workers compute micro-batches of `size` samples, one after the other.

    Its batches are in micro-batches, each of which takes as long as a batch of as many samples. A worker may
    get all of them, since only one has to fit into its memory.
    """
    number = cluster.total // size
    workers = {}
    for name, times in cluster.workers.items():
        if size > times.bounds.maximum:
            raise ValueError(
                f"micro_batch {size}: {cluster.model} was measured on {name} for at most "
                f"{times.bounds.maximum} samples"
            )
        workers[name] = StepTimes((1, number + 1), (times.time(size), times.time(size) * (number + 1)))
    if number < len(workers):
        raise ValueError(
            f"micro_batch {size}: a batch of {cluster.total} samples has {number} for {len(workers)} workers"
        )
    return Cluster(cluster.model, workers, number)


def read_step_times(path: Path) -> GpuCurves:
    """Read a file of measurements; repeated ones are averaged."""
    measured: dict[tuple[str, str], dict[int, list[float]]] = {}
    with path.open(newline="") as stream:
        rows = csv.DictReader(stream)
        columns = rows.fieldnames or []
        measure = next((name for name in _MEASURES if name in columns), None)
        if measure is None or not set(_KEYS) <= set(columns):
            raise ValueError(
                f"curves {str(path)!r}: needs the columns {', '.join(_KEYS)} and {' or '.join(_MEASURES)}, "
                f"but has {', '.join(columns) or 'none'}"
            )
        for number, row in enumerate(rows, 2):
            try:
                size, value = int(row["batch_size"]), float(row[measure])
            except (TypeError, ValueError):
                size, value = 0, math.nan
            if size < 1 or not 0 < value < math.inf:
                raise ValueError(
                    f"curves {str(path)!r}, line {number}: batch_size {row['batch_size']!r} must be a whole "
                    f"number from 1, {measure} {row[measure]!r} a number above 0"
                )
            seconds = value if measure == "step_time_s" else size / value
            measured.setdefault((row["model"], row["gpu"]), {}).setdefault(size, []).append(seconds)
    curves: dict[str, dict[str, StepTimes]] = {}
    for (model, gpu), times in measured.items():
        if len(times) > 1:
            mean = {size: sum(seconds) / len(seconds) for size, seconds in times.items()}
            sizes = sorted(mean)
            rising = tuple(np.maximum.accumulate([mean[size] for size in sizes]).tolist())
            curves.setdefault(model, {})[gpu] = StepTimes(tuple(sizes), rising)
    if not curves:
        raise ValueError(f"curves {str(path)!r}: no GPU was measured with more than one batch size")
    return curves


def made_up_step_times() -> GpuCurves:
    """Make up curves of the usual form for five GPUs: flat while launching takes longest, then a line."""
    gpus = {  # least seconds, fixed seconds, seconds per sample, samples that fit
        "small": (0.040, 0.010, 0.00100, 256),
        "medium": (0.045, 0.012, 0.00040, 512),
        "wide": (0.090, 0.020, 0.00020, 1024),
        "large": (0.030, 0.010, 0.00020, 1024),
        "largest": (0.035, 0.008, 0.00008, 2048),
    }
    sizes = [2**power for power in range(3, 12)]
    return {
        "made-up": {
            gpu: StepTimes(
                tuple(size for size in sizes if size <= most),
                tuple(max(least, besides + each * size) for size in sizes if size <= most),
            )
            for gpu, (least, besides, each, most) in gpus.items()
        }
    }
