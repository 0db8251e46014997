"""Runs one scheme: a cluster with limited workers, competitors beside them, and what all this shows."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray
from rich.progress import Progress

from evenpace.cpu_limits import LimitKind
from evenpace.lab.cluster import LocalCluster, pick_cpus
from evenpace.lab.experiments.containers import ContainerCluster
from evenpace.lab.experiments.contention import Contention, Place, ProcessPlace
from evenpace.lab.experiments.schedule import Schedule
from evenpace.lab.experiments.schemes import Scheme
from evenpace.lab.experiments.workloads import Training
from evenpace.lab.traces import TraceRecorder
from evenpace.observer import Observer
from evenpace.processes import Process
from idl.errors import EvenpaceError

_POLL_SECONDS = 0.05  # how soon competitors follow the schedule
_RECENT = 10  # iterations whose mean time is taken for the current one's
_SNAPSHOTS = 15  # of the parameters in a run, about; for the curves of loss and accuracy
_SCRIPT = Path(__file__).with_name("train.py")


class RunTooShortError(EvenpaceError):
    """A run ended before anything could be seen of it."""


@dataclass(frozen=True)
class RunConfig:
    """What is the same for every scheme.

    Attributes:
        training: What is trained.
        elements: Parameters of its model.
        shares: Cores that each worker may use.
        iterations: Of each worker.
        settle: First iterations, which are left out of means and errors.
        total_batch_size: Samples of an update, over all workers.
        schedule: Who is disturbed when.
        memory_bytes: What a worker's shares of memory in the schedule refer to.
        first_fit: Iterations before a predictor that learns is fitted.
        refit_every: Iterations between fits.
        tolerance: The manager's.
        reuse: Models to start predictors from: a file or a folder.
        limit_kind: See `evenpace.cpu_limits.limit_cpu`.
        shards: Processes of the parameter server.
        containers: Whether each part runs in a container, instead of being a process of this machine.
        out: Folder for the logs.
    """

    training: Training
    elements: int
    shares: tuple[float, ...]
    iterations: int
    settle: int
    total_batch_size: int
    schedule: Schedule
    memory_bytes: int
    first_fit: int
    refit_every: int
    tolerance: float
    reuse: Path | None
    limit_kind: LimitKind
    shards: int
    containers: bool
    out: Path


class ProcessCluster(LocalCluster):
    """A cluster of processes, as an experiment needs to know it."""

    def place(self, process: Process, cores: float, memory_bytes: int, cpu: int | None) -> ProcessPlace:
        """Where competitors of a worker run: beside it."""
        return ProcessPlace(process.popen.pid, cores, memory_bytes, cpu)

    def manager_pid(self) -> int:
        """The manager's process."""
        return self.processes[0].popen.pid


Cluster = ProcessCluster | ContainerCluster


@dataclass(frozen=True)
class Snapshot:
    """The parameters at one moment of a run."""

    seconds: float  # since training began
    updates: int
    parameters: NDArray[Any]  # (elements,)


@dataclass(frozen=True)
class Run:
    """What a run showed; times in seconds.

    Attributes:
        scheme: What was run.
        records: Of the finished iterations, as `IterationRecord.plain` gives them.
        snapshots: In the order of time; the last is from after the end.
        seconds: For which all workers took part.
        manager_cpu: CPU time of the manager and its training process.
        tasks: Competing tasks that were started.
        workers: How many took part.
    """

    scheme: Scheme
    records: list[dict[str, Any]]
    snapshots: list[Snapshot]
    seconds: float
    manager_cpu: float
    tasks: int
    workers: int

    def iteration_time(self, skip: int = 0) -> float:
        """Seconds in which as many gradients are applied as there are workers; the mean.

        For synchronous schemes it is the mean iteration without the first `skip`. Without barriers there
        are no iterations: then it is the workers' number times the mean time between two updates (LB-BSP,
        section 5.1), as long as all workers are there.
        """
        if self.scheme.synchronous:
            return float(np.mean([record["duration"] for record in self.records[skip:]]))
        first, last = self.snapshots[0], self.snapshots[-2]
        return self.workers * (last.seconds - first.seconds) / (last.updates - first.updates)


def run_scheme(scheme: Scheme, config: RunConfig, progress: Progress) -> Run:
    """Run a scheme to its end.

    Args:
        scheme: What to run.
        config: What is the same for all.
        progress: Shows how far it is.

    Raises:
        EvenpaceError: A process or a competitor failed; the message says which, and why.
    """
    extra = scheme.backup_workers
    workers = len(config.shares) + extra
    # Backup workers come on top: the batch of those that are waited for stays the same.
    batch_size = config.total_batch_size * workers // len(config.shares)
    shares = [*config.shares, *([float(np.median(config.shares))] * extra)]
    folder = (config.out / scheme.name.replace(":", "-")).resolve()
    cluster = (ContainerCluster if config.containers else ProcessCluster)(
        folder,
        policy=scheme.policy,
        predictor=scheme.predictor or "ema",
        tolerance=config.tolerance,
        workers=workers,
        shards=config.shards,
        sync=scheme.sync,
        staleness=scheme.staleness,
        replicas_to_aggregate=len(config.shares) if extra else None,
        manager_options=_manager_options(config, folder),
    )
    with cluster:
        places = _start_workers(cluster, scheme, config, shares, batch_size)
        observer = Observer(cluster.manager, cluster.shard_addresses)
        watch = _Watch(observer, config, cluster)
        contention = Contention(config.schedule.of_first(workers), places)
        task = progress.add_task(scheme.name, total=config.iterations)
        try:
            watch.until_end(contention, lambda done: progress.update(task, completed=done))
        finally:
            contention.close()
            observer.close()
        _write_trace(observer, folder / "trace.csv")
        return Run(
            scheme,
            [record.plain() for record in observer.iterations],
            watch.snapshots,
            watch.seconds,
            watch.manager_cpu,
            contention.started,
            workers,
        )


def _write_trace(observer: Observer, path: Path) -> None:
    """Keep the workers' speeds and usage, for `evenpace bench predictors`."""
    path.unlink(missing_ok=True)  # a recorder would continue it
    recorder = TraceRecorder(path)
    recorder.append(observer.iterations)
    recorder.close()


def _manager_options(config: RunConfig, folder: Path) -> list[str]:
    options = ["--first-fit", str(config.first_fit), "--refit-every", str(config.refit_every)]
    options += ["--models", str(folder / "models")]
    if config.reuse is not None:
        options += ["--reuse", str(config.reuse.resolve())]
    return options


def _start_workers(
    cluster: Cluster, scheme: Scheme, config: RunConfig, shares: Sequence[float], batch_size: int
) -> list[Place]:
    arguments = [config.training.name]
    if scheme.one_by_one:
        arguments += ["--one-by-one", "--workers", str(len(shares))]
    if scheme.stealing:
        arguments += ["--board", str(cluster.folder / "board")]
    length = ["--batch-size", str(batch_size), "--iterations", str(config.iterations)]
    places: list[Place] = []
    for rank, (share, cpu) in enumerate(zip(shares, pick_cpus(shares), strict=True)):
        process = cluster.start_worker(
            f"worker-{rank}",
            _SCRIPT,
            [*arguments, "--rank", str(rank), *config.training.arguments, *length],
            cpu_share=share,
            limit_kind=config.limit_kind,
            options={"--cpu": str(cpu)},
        )
        places.append(cluster.place(process, share, config.memory_bytes, cpu))
    return places


class _Watch:
    """Follows a run: keeps the competitors to their schedule, and takes snapshots."""

    def __init__(self, observer: Observer, config: RunConfig, cluster: Cluster) -> None:
        self._observer = observer
        self._config = config
        self._cluster = cluster
        self._manager = psutil.Process(cluster.manager_pid())
        self._parameters = np.empty(config.elements, dtype=np.float32)
        self._done, self._done_at = 0, 0.0  # iterations, and when that was first seen
        self.snapshots: list[Snapshot] = []
        self.seconds = 0.0  # for which all workers took part
        self.manager_cpu = 0.0  # meanwhile

    def until_end(self, contention: Contention, show: Callable[[int], None]) -> None:
        """Follow the run until its workers have ended.

        Args:
            contention: Kept to its schedule.
            show: Called with the iterations that are done.

        Raises:
            RunTooShortError: It was over before much could be seen.
        """
        in_iterations = self._config.schedule.unit == "iterations"
        began, cpu_before = 0.0, 0.0
        complete = True  # all workers are there
        while self._cluster.check():
            time.sleep(_POLL_SECONDS)
            if not self._observer.poll() or not self._observer.iterations:
                continue
            now, done = time.monotonic(), len(self._observer.iterations)
            if not began:
                began, cpu_before = now, self._cpu_seconds()
            # Without barriers some end before the others, and leave these more than their part.
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
        self._observer.poll()
        show(len(self._observer.iterations))

    def _progress(self, now: float) -> float:
        """Iterations that are done, and about how much of the current one: tasks come in the middle, too."""
        done = len(self._observer.iterations)
        if done != self._done:
            self._done, self._done_at = done, now
        recent = statistics.fmean(record.duration for record in self._observer.iterations[-_RECENT:])
        return done + min((now - self._done_at) / recent, 1.0)

    def _take(self, seconds: float) -> None:
        updates = self._observer.pull(self._parameters)
        self.snapshots.append(Snapshot(seconds, updates, self._parameters.copy()))

    def _cpu_seconds(self) -> float:
        """CPU time of the manager and of its training process so far."""
        total = 0.0
        for process in (self._manager, *self._manager.children()):
            times = process.cpu_times()
            total += times.user + times.system
        return total
