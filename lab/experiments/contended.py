"""Run of one scheme with competing tasks beside its workers."""

import contextlib
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np
import psutil
from rich.progress import Progress

from batchsize_manager.config import TOLERANCE
from batchsize_manager.policies import Tolerance
from evenpace.local.cluster import LocalCluster
from idl.errors import InvalidRequestError
from idl.settings import Setting, check_settings
from lab.experiments.containers import ContainerCluster
from lab.experiments.contention import ContainerPlace, Contention, Place, ProcessPlace
from lab.experiments.contention_schedule import Disturbance, Schedule, Unit
from lab.experiments.scheme_run import (
    RunConfig,
    RunTooShortError,
    SchemeRun,
    Snapshots,
    followed,
    manager_options,
    training,
)
from lab.experiments.schemes import Scheme
from lab.fields import Folder, Seed, Shares
from lab.observer import Observer
from lab.traces import TraceRecorder
from lab.workloads.by_name import Arguments
from predictors import PredictorOptions

_MEMORY_BYTES = 256 * 2**20  # what a schedule's shares of memory refer to
_RECENT = 10  # last iterations, whose mean time is taken for that of the current one
_SNAPSHOTS = 15  # snapshots of the parameters in a run, about, for the curves of loss and accuracy


@dataclass(frozen=True, kw_only=True)
class ContendedOptions:
    """The options of an experiment under contention."""

    out: Folder
    shares: Shares = (0.35, 0.35, 0.35, 0.35)
    iterations: Annotated[int, Setting("Of each worker.", least=20)] = 300
    settle: Annotated[int, Setting("First iterations, left out of means and errors.", least=0)] = 5
    batch_size: Annotated[int | None, Setting("Over all workers.  [default: by workload]", least=1)] = None
    disturbance: Disturbance = field(default_factory=Disturbance)
    seed: Seed = 1  # seed of who is disturbed
    learning: PredictorOptions = field(default_factory=lambda: PredictorOptions(first_fit=100))
    # Models to start predictors from: a file or a folder.
    reuse: Annotated[
        Path | None, Setting("Start predictors from kept models: a file, or a folder of them.", exists=True)
    ] = None
    tolerance: Tolerance = TOLERANCE
    containers: Annotated[bool, Setting("Run each part in a container; see docs/containers.md.")] = False
    arguments: Arguments = ()

    def __post_init__(self) -> None:
        check_settings(self)
        if self.settle > self.iterations - 2:
            raise InvalidRequestError(
                f"settle {self.settle}: must leave at least two of {self.iterations} iterations"
            )


@dataclass(frozen=True)
class ContendedRun(SchemeRun):
    """Measurements of a run; times in seconds, versions of the parameters as the snapshots' updates."""

    seconds: float  # time for which all workers took part
    manager_cpu: float  # CPU time of the manager and its training process meanwhile
    tasks: int  # number of competing tasks that were started
    workers: int  # number of workers


def run_contended(
    scheme: Scheme, config: RunConfig, options: ContendedOptions, schedule: Schedule, progress: Progress
) -> ContendedRun:
    """Run a scheme to its end."""
    extra = scheme.backup_workers
    workers = len(config.shares) + extra
    # Backup workers come on top: the batch of the workers whose gradients are waited for stays the same.
    batch_size = config.total_batch_size * workers // len(config.shares)
    shares = [*config.shares, *([float(np.median(config.shares))] * extra)]
    folder = (options.out / scheme.name.replace(":", "-")).resolve()
    cluster = (ContainerCluster if options.containers else LocalCluster)(
        folder,
        workers=workers,
        **manager_options(scheme, config),
        replicas_to_aggregate=len(config.shares) if extra else None,
        first_fit=options.learning.first_fit,
        refit_every=options.learning.refit_every,
        models=folder / "models",
        reuse=options.reuse and options.reuse.resolve(),
    )

    def arguments(rank: int) -> list[str]:
        words = ["--one-by-one", "--workers", str(workers)] if scheme.one_by_one else []
        words += ["--board", str(folder / "board")] if scheme.stealing else []
        words += ["--rank", str(rank), "--iterations", str(config.iterations)]
        return [*words, "--batch-size", str(batch_size)]

    with training(cluster, config, shares, arguments) as observer:
        places = [_place(cluster, rank, share) for rank, share in enumerate(shares)]
        watch = _Watch(observer, config, schedule.unit, cluster)
        task = progress.add_task(scheme.name, total=config.iterations)
        with contextlib.closing(Contention(schedule.of_first(workers), places)) as contention:
            for _ in followed(cluster, observer):
                watch.look(time.monotonic(), contention)
                progress.update(task, completed=len(observer.iterations))
        watch.end(time.monotonic())
        trace = folder / "trace.csv"
        trace.unlink(missing_ok=True)  # a recorder would continue it
        with contextlib.closing(TraceRecorder(trace)) as recorder:
            recorder.append(observer.iterations)
        records = [record.plain() for record in observer.iterations]
        measured = watch.seconds, watch.manager_cpu, contention.started, workers
        return ContendedRun(scheme, records, watch.snapshots, *measured)


def _place(cluster: LocalCluster, rank: int, cores: float) -> Place:
    """Return the place of a worker's competing tasks: beside it, or in its container."""
    name = f"worker-{rank}"
    if isinstance(cluster, ContainerCluster):
        return ContainerPlace(cluster.container(name), cores, _MEMORY_BYTES)
    return ProcessPlace(cluster.pid(name), cores, _MEMORY_BYTES, cluster.shares[name].cpu)


class _Watch:
    """Follower of a run, which keeps the competing tasks to their schedule, and takes snapshots."""

    def __init__(self, observer: Observer, config: RunConfig, unit: Unit, cluster: LocalCluster) -> None:
        self._observer = observer
        self._config = config
        self._in_iterations = unit == "iterations"
        self._workers = cluster.workers
        self._manager = psutil.Process(cluster.pid("manager"))
        self._snapshots = Snapshots(observer, config)
        self._began, self._cpu_before = 0.0, 0.0  # when the first iteration was seen, and the CPU time then
        self._complete = True  # all workers still take part
        self._done, self._done_at = 0, 0.0  # iterations, and when that was first seen
        self.snapshots = self._snapshots.taken
        self.seconds = 0.0  # for which all workers took part
        self.manager_cpu = 0.0  # meanwhile

    def look(self, now: float, contention: Contention) -> None:
        """Look at the job's progress at a monotonic time, in seconds."""
        done = len(self._observer.iterations)
        if not done:
            return
        if not self._began:
            self._began, self._cpu_before = now, self._cpu_seconds()
        # Without barriers some workers end before the others, which have more CPU then.
        self._complete = self._complete and len(self._observer.members) == self._workers
        if self._complete:
            self.seconds = now - self._began
            contention.update(self._progress(now) if self._in_iterations else self.seconds)
            self.manager_cpu = self._cpu_seconds() - self._cpu_before
            if done >= len(self.snapshots) * self._config.iterations / _SNAPSHOTS:
                self._snapshots.take(self.seconds)

    def end(self, now: float) -> None:
        """Take the last snapshot (RunTooShortError: the run was over before anything could be measured)."""
        if len(self.snapshots) < 2:
            raise RunTooShortError(
                f"too little of {self._config.iterations} iterations was seen: ask for more"
            )
        self._snapshots.take(now - self._began)

    def _progress(self, now: float) -> float:
        """Return the iterations done, with an estimated part of the current one: tasks begin there, too."""
        done = len(self._observer.iterations)
        if done != self._done:
            self._done, self._done_at = done, now
        recent = statistics.fmean(record.duration for record in self._observer.iterations[-_RECENT:])
        return done + min((now - self._done_at) / recent, 1.0)

    def _cpu_seconds(self) -> float:
        """Return the CPU time of the manager and of its training process so far, in seconds."""
        times = [process.cpu_times() for process in (self._manager, *self._manager.children())]
        return sum(one.user + one.system for one in times)
