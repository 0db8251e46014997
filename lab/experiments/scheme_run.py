"""Common part of all runs of schemes: a cluster of limited workers that train a workload to its end."""

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchsize_manager.config import TOLERANCE
from evenpace.local.cluster import LocalCluster, share_cpus
from idl.errors import EvenpaceError
from lab.experiments.schemes import Scheme
from lab.observer import Observer
from lab.workloads.by_name import Training
from worker.resources.cpu_limits import LimitKind

_SHARDS = 1  # processes of the parameter server, as a local cluster has by default
_POLL_SECONDS = 0.05  # seconds between two looks at the job
_SCRIPT = Path(__file__).with_name("train_workload.py")


class RunTooShortError(EvenpaceError):
    """A run ended before anything could be measured."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The configuration that all schemes share (ValueError: there are fewer samples than workers)."""

    training: Training  # what is trained
    elements: int  # parameters of its model
    shares: tuple[float, ...]  # cores that each worker may use
    iterations: int  # of a synchronous scheme
    total_batch_size: int  # samples of an iteration, over all workers
    tolerance: float = TOLERANCE  # the manager's
    limit_kind: LimitKind = "auto"  # see `worker.resources.cpu_limits.limit_cpu`
    snapshots: int = 30  # of the parameters in a run on unequal workers, about; 0 for none

    def __post_init__(self) -> None:
        if self.total_batch_size < len(self.shares):
            raise ValueError(
                f"batch size {self.total_batch_size}: must be at least one for each of "
                f"{len(self.shares)} workers"
            )

    @property
    def updates(self) -> int:
        """Gradients that a run takes: one from each worker in each iteration."""
        return self.iterations * len(self.shares)


@dataclass(frozen=True)
class ParameterSnapshot:
    """Parameters at one moment of a run."""

    seconds: float  # time since training began
    updates: int  # gradients that went into them, in the synchronous schemes one for each worker and step
    parameters: NDArray[np.float32]  # the parameters, (elements,)
    shards: int = 0  # from which they were pulled, in whose order they are; 0: the tensors follow each other


@dataclass(frozen=True)
class SchemeRun:
    """Measurements of a run."""

    scheme: Scheme  # the scheme that was run
    # Records of the finished iterations, as `IterationRecord.plain` returns them.
    records: list[dict[str, Any]]
    snapshots: list[ParameterSnapshot]  # in the order of time, the last one from the end


class Snapshots:
    """Snapshots of a job's parameters, taken on demand; a version of these counts as so many gradients."""

    def __init__(self, observer: Observer, config: RunConfig, gradients: int = 1) -> None:
        self._observer = observer
        self._gradients = gradients
        self._parameters = np.empty(config.elements, dtype=np.float32)
        self.taken: list[ParameterSnapshot] = []

    def take(self, seconds: float, version: int = -1) -> None:
        """Take one of at least this version, -1 for the present one, `seconds` after training began."""
        updates = self._gradients * self._observer.pull(self._parameters, version)
        self.taken.append(ParameterSnapshot(seconds, updates, self._parameters.copy(), _SHARDS))


def manager_options(scheme: Scheme, config: RunConfig) -> dict[str, Any]:
    """Return a scheme's options of `evenpace manager`, by name."""
    return {
        "policy": scheme.policy,
        "predictor": scheme.predictor,
        "tolerance": config.tolerance,
        "sync": scheme.sync,
        "staleness": scheme.staleness,
    }


@contextlib.contextmanager
def training(
    cluster: LocalCluster,
    config: RunConfig,
    shares: Sequence[float],
    arguments: Callable[[int], Sequence[str]],
) -> Iterator[Observer]:
    """Start a cluster with workers that train the workload, yield an observer of it, and stop all.

    `arguments` returns a worker's further arguments, by its rank.
    """
    with cluster:
        for rank, share in enumerate(share_cpus(shares, config.limit_kind)):
            trained = config.training.with_options(*arguments(rank), "--test-samples", "0")
            line = [trained.name, *trained.arguments]
            cluster.start_worker(f"worker-{rank}", _SCRIPT, line, share=share)
        with contextlib.closing(Observer(cluster.manager, cluster.shard_addresses)) as observer:
            yield observer


def followed(cluster: LocalCluster, observer: Observer, gone: Collection[str] = ()) -> Iterator[None]:
    """Yield after each look of the observer at the job, once there is one; last after its workers' end.

    Workers that are `gone` may have ended in any way; these may change meanwhile.
    """
    running = True
    while running:
        running = cluster.check(gone)
        time.sleep(_POLL_SECONDS)
        try:
            there = observer.poll()
        except EvenpaceError:
            cluster.check(gone)  # a process that has failed says more
            raise
        if there:
            yield
