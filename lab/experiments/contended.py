"""Run of one scheme with competing tasks beside its workers."""

import contextlib
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from rich.progress import Progress

from evenpace.local.cluster import LocalCluster
from lab.experiments.config import ContendedOptions
from lab.experiments.containers import ContainerCluster
from lab.experiments.contention import ContainerPlace, Contention, Place, ProcessPlace
from lab.experiments.contention_schedule import Schedule
from lab.experiments.scheme_run import (
    ParameterSnapshot,
    RunConfig,
    RunTooShortError,
    followed,
    manager_options,
    training,
)
from lab.experiments.schemes import Scheme
from lab.observer import Observer
from lab.traces import TraceRecorder

_RECENT = 10  # last iterations, whose mean time is taken for that of the current one
_SNAPSHOTS = 15  # snapshots of the parameters in a run, about, for the curves of loss and accuracy


@dataclass(frozen=True, kw_only=True)
class ContendedConfig(ContendedOptions, RunConfig):
    """The configuration that all schemes share; each worker makes all iterations, whatever the scheme."""

    schedule: Schedule  # who is disturbed when


@dataclass(frozen=True)
class ContendedRun:
    """Measurements of a run; times in seconds."""

    scheme: Scheme  # the scheme that was run
    # Records of the finished iterations, as `IterationRecord.plain` returns them.
    records: list[dict[str, Any]]
    snapshots: list[ParameterSnapshot]  # snapshots in the order of time; the last is from after the end
    seconds: float  # time for which all workers took part
    manager_cpu: float  # CPU time of the manager and its training process
    tasks: int  # number of competing tasks that were started
    workers: int  # number of workers

    def iteration_time(self, skip: int = 0) -> float:
        """Return the mean seconds in which as many gradients are applied as there are workers.

        For synchronous schemes it is the mean iteration without the first `skip`. Without barriers there
        are no iterations: then it is the workers' number times the mean time between two updates (LB-BSP,
        section 5.1), as long as all workers are there.
        """
        if self.scheme.synchronous:
            return float(np.mean([record["duration"] for record in self.records[skip:]]))
        first, last = self.snapshots[0], self.snapshots[-2]
        return self.workers * (last.seconds - first.seconds) / (last.updates - first.updates)


def run_contended(scheme: Scheme, config: ContendedConfig, progress: Progress) -> ContendedRun:
    """Run a scheme to its end.

    Args:
        config: Configuration of the run.

    Raises:
        EvenpaceError: A process or a competing task failed; the message says which, and why.
    """
    extra = scheme.backup_workers
    workers = len(config.shares) + extra
    # Backup workers come on top: the batch of the workers whose gradients are waited for stays the same.
    batch_size = config.total_batch_size * workers // len(config.shares)
    shares = [*config.shares, *([float(np.median(config.shares))] * extra)]
    folder = (config.out / scheme.name.replace(":", "-")).resolve()
    cluster = (ContainerCluster if config.containers else LocalCluster)(
        folder,
        workers=workers,
        shards=config.shards,
        **manager_options(scheme, config),
        replicas_to_aggregate=len(config.shares) if extra else None,
        first_fit=config.learning.first_fit,
        refit_every=config.learning.refit_every,
        models=folder / "models",
        reuse=config.reuse.resolve() if config.reuse is not None else None,
    )

    def arguments(rank: int) -> list[str]:
        words = ["--one-by-one", "--workers", str(workers)] if scheme.one_by_one else []
        words += ["--board", str(folder / "board")] if scheme.stealing else []
        words += ["--rank", str(rank), "--iterations", str(config.iterations)]
        return [*words, "--batch-size", str(batch_size)]

    with training(cluster, config, shares, arguments) as observer:
        places = [_place(cluster, rank, share, config) for rank, share in enumerate(shares)]
        watch = _Watch(observer, config, cluster)
        contention = Contention(config.schedule.of_first(workers), places)
        task = progress.add_task(scheme.name, total=config.iterations)
        with contextlib.closing(contention):
            watch.until_end(contention, lambda done: progress.update(task, completed=done))
        _write_trace(observer, folder / "trace.csv")
        return ContendedRun(
            scheme,
            [record.plain() for record in observer.iterations],
            watch.snapshots,
            watch.seconds,
            watch.manager_cpu,
            contention.started,
            workers,
        )


def _place(cluster: LocalCluster, rank: int, cores: float, config: ContendedConfig) -> Place:
    """Return the place of a worker's competing tasks: beside it, or in its container."""
    name = f"worker-{rank}"
    if isinstance(cluster, ContainerCluster):
        return ContainerPlace(cluster.container(name), cores, config.memory_bytes)
    return ProcessPlace(cluster.pid(name), cores, config.memory_bytes, cluster.shares[name].cpu)


def _write_trace(observer: Observer, path: Path) -> None:
    """Write the workers' speeds and usage as a trace, for `evenpace lab bench predictors`."""
    path.unlink(missing_ok=True)  # a recorder would continue it
    recorder = TraceRecorder(path)
    recorder.append(observer.iterations)
    recorder.close()


class _Watch:
    """Follower of a run, which keeps the competing tasks to their schedule, and takes snapshots."""

    def __init__(self, observer: Observer, config: ContendedConfig, cluster: LocalCluster) -> None:
        self._observer = observer
        self._config = config
        self._cluster = cluster
        self._manager = psutil.Process(cluster.pid("manager"))
        self._parameters = np.empty(config.elements, dtype=np.float32)
        self._done, self._done_at = 0, 0.0  # iterations, and when that was first seen
        self.snapshots: list[ParameterSnapshot] = []
        self.seconds = 0.0  # for which all workers took part
        self.manager_cpu = 0.0  # meanwhile

    def until_end(self, contention: Contention, show: Callable[[int], None]) -> None:
        """Follow the run until its workers have ended.

        Args:
            contention: Competing tasks, which are kept to their schedule.
            show: Called with the number of iterations that are done.

        Raises:
            RunTooShortError: The run was over before anything could be measured.
        """
        in_iterations = self._config.schedule.unit == "iterations"
        began, cpu_before = 0.0, 0.0
        complete = True  # all workers still take part
        for _ in followed(self._cluster, self._observer):
            if not self._observer.iterations:
                continue
            now, done = time.monotonic(), len(self._observer.iterations)
            if not began:
                began, cpu_before = now, self._cpu_seconds()
            # Without barriers some workers end before the others, which have more CPU then.
            complete = complete and len(self._observer.members) == self._cluster.workers
            if complete:
                contention.update(self._progress(now) if in_iterations else now - began)
                self.seconds = now - began
                self.manager_cpu = self._cpu_seconds() - cpu_before
                if done >= len(self.snapshots) * self._config.iterations / _SNAPSHOTS:
                    self._take(now - began)
            show(done)
        if len(self.snapshots) < 2:
            raise RunTooShortError(
                f"too little of {self._config.iterations} iterations was seen: ask for more"
            )
        self._take(time.monotonic() - began)

    def _progress(self, now: float) -> float:
        """Return the iterations done, with an estimated part of the current one: tasks begin there, too."""
        done = len(self._observer.iterations)
        if done != self._done:
            self._done, self._done_at = done, now
        recent = statistics.fmean(record.duration for record in self._observer.iterations[-_RECENT:])
        return done + min((now - self._done_at) / recent, 1.0)

    def _take(self, seconds: float) -> None:
        updates = self._observer.pull(self._parameters)
        self.snapshots.append(
            ParameterSnapshot(seconds, updates, self._parameters.copy(), self._config.shards)
        )

    def _cpu_seconds(self) -> float:
        """Return the CPU time of the manager and of its training process so far, in seconds."""
        total = 0.0
        for process in (self._manager, *self._manager.children()):
            times = process.cpu_times()
            total += times.user + times.system
        return total
