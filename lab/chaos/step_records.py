"""A job's steps as they are written down: in the shards' ledgers, or with all-reduce in workers' journals."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from lab.chaos.chaos_cluster import ChaosCluster
from lab.chaos.ledgers import Journal, Rewind, Step, entry, ledger_of, read_ledger

ALL_REDUCE = "all-reduce"

Place = tuple[int, int]
"""Attempt and version; the later one of two is the larger."""


class StepRecords(Protocol):
    """Interface of a job's steps as they are written down."""

    every: int  # versions between two to which the job can go back

    def files(self) -> dict[str, list[Path]]:
        """Return the files so far, by who writes them."""

    def place(self, line: Any) -> tuple[Place, bool] | None:
        """Return attempt and version of whoever wrote a line, and whether it was a step that led there."""

    def version(self, places: Iterable[Place]) -> int:
        """Return the version that the job has reached, from where each writer is."""

    def ledgers(self) -> dict[str, Iterable[Step | Rewind]]:
        """Return the steps and the rewinds, by whose parameters they are of."""


class _StepsOfShards(StepRecords):
    """Steps that the shards of a parameter server take."""

    def __init__(self, cluster: ChaosCluster, job: str) -> None:
        self._cluster, self._job = cluster, job
        self.every = cluster.settings.checkpoint_every

    def files(self) -> dict[str, list[Path]]:
        return {shard: self._cluster.ledgers(shard, self._job) for shard in self._cluster.shards}

    def place(self, line: Any) -> tuple[Place, bool] | None:
        what = entry(line)
        if isinstance(what, Step):
            return (what.attempt, what.iteration + 1), True
        return None if what is None else ((what.attempt, what.version), False)

    def version(self, places: Iterable[Place]) -> int:
        return min(version for _, version in places)

    def ledgers(self) -> dict[str, Iterable[Step | Rewind]]:
        return {shard: read_ledger(files) for shard, files in self.files().items()}


class _StepsOfWorkers(StepRecords):
    """Steps that each worker takes itself, with the gradient that all have reduced."""

    every = 1

    def __init__(self, cluster: ChaosCluster, job: str) -> None:
        self._cluster, self._workers = cluster, (*cluster.jobs[job], *cluster.guests)

    def files(self) -> dict[str, list[Path]]:
        return {worker: self._cluster.journals(worker) for worker in self._workers}

    def place(self, line: Any) -> tuple[Place, bool] | None:
        what, attempt, number, *_ = line
        return None if what == "computed" else ((attempt, number + (what == "stepped")), what == "stepped")

    def version(self, places: Iterable[Place]) -> int:
        return max(places)[1]

    def ledgers(self) -> dict[str, Iterable[Step | Rewind]]:
        return {ALL_REDUCE: ledger_of([Journal.of(name, files) for name, files in self.files().items()])}


def step_records(cluster: ChaosCluster, job: str) -> StepRecords:
    """Return a job's steps as its cluster writes them down."""
    of_workers = cluster.settings.exchange == ALL_REDUCE
    return _StepsOfWorkers(cluster, job) if of_workers else _StepsOfShards(cluster, job)
