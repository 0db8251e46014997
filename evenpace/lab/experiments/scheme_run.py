"""What all runs of schemes share: a cluster whose limited workers train a workload, followed to its end."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenpace.cpu_limits import LimitKind
from evenpace.lab.cluster import LocalCluster, share_cpus
from evenpace.lab.experiments.schemes import Scheme
from evenpace.lab.workloads.by_name import Training
from evenpace.observer import Observer
from idl.errors import EvenpaceError

_POLL_SECONDS = 0.05  # how soon what follows a run sees what is new
_SCRIPT = Path(__file__).with_name("train_workload.py")


class RunTooShortError(EvenpaceError):
    """A run ended before anything could be seen of it."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """What is the same for every scheme.

    Attributes:
        training: What is trained.
        elements: Parameters of its model.
        shares: Cores that each worker may use.
        iterations: Of a synchronous scheme.
        total_batch_size: Samples of an iteration, over all workers.
        tolerance: The manager's.
        limit_kind: See `evenpace.cpu_limits.limit_cpu`.
        shards: Processes of the parameter server.
    """

    training: Training
    elements: int
    shares: tuple[float, ...]
    iterations: int
    total_batch_size: int
    tolerance: float = 0.02
    limit_kind: LimitKind = "auto"
    shards: int = 1


@dataclass(frozen=True)
class Snapshot:
    """The parameters at one moment of a run.

    Attributes:
        seconds: Since training began.
        updates: Gradients that went into them, in the synchronous schemes one for each worker and step.
        parameters: (elements,)
    """

    seconds: float
    updates: int
    parameters: NDArray[np.float32]


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
    """Start a cluster with workers that train the workload, and stop all at the end of `with`.

    Args:
        cluster: Not started yet.
        config: What is trained.
        shares: Cores of each worker.
        arguments: A worker's, by its rank, beside those of the workload.

    Yields:
        An observer of the job.
    """
    with cluster:
        for rank, share in enumerate(share_cpus(shares, config.limit_kind)):
            words = [config.training.name, *config.training.arguments, *arguments(rank)]
            cluster.start_worker(f"worker-{rank}", _SCRIPT, words, share=share)
        with contextlib.closing(Observer(cluster.manager, cluster.shard_addresses)) as observer:
            yield observer


def followed(cluster: LocalCluster, observer: Observer) -> Iterator[None]:
    """Yield whenever the observer has asked about a job that there is, the last time after its workers' end.

    Raises:
        EvenpaceError: A process failed, or the manager does not answer.
    """
    running = True
    while running:
        running = cluster.check()
        time.sleep(_POLL_SECONDS)
        if observer.poll():
            yield
