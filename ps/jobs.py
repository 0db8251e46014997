"""The jobs of a shard process: what it may hold, what comes back from its folder, and what is forgotten when.

It knows neither calls nor bytes on the wire: that is for `service`.
"""

import logging
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from idl.errors import InvalidRequestError, UnavailableError
from idl.layout import Layout
from idl.synchronisation import Synchronisation
from ps.asynchronous import AsynchronousShard
from ps.backup import BackupShard
from ps.checkpoint import ShardCheckpoint
from ps.log_fields import log_fields
from ps.model import Model
from ps.parameters import Parameters
from ps.shard import Shard
from ps.shard_job import ShardJob
from ps.store import JobStore, Store
from rpc.limited_log import LimitedLog

log = logging.getLogger(__name__)

_LINES = 50  # of one level, per second, of log about jobs
_FORGET_SECONDS = 600.0  # a job that nobody is connected for stays in memory so long
_SWEEP_SECONDS = 60.0  # between looks at the folder


@dataclass(frozen=True)
class ParameterServerConfig:
    """How a shard process serves.

    Attributes:
        deterministic: Whether gradients are summed in the order of their slices; see `ps.shard.Shard`.
            Only for jobs that run with BSP.
        memory_bytes: Of parameters, over all jobs, and of state that waits for its parameters. Sums and the
            optimiser's state come on top.
        state: The folder for checkpoints, of this process alone; None for none.
        checkpoint_every: Versions from one checkpoint to the next.
        keep: Seconds after which a job is removed from the folder that has not been written to, and that
            nobody is connected for.
        ledger: The folder for files in which each job's steps are written down; None for none.

    Raises:
        ValueError: A number is out of its range, or there is a ledger without a folder for checkpoints.
    """

    deterministic: bool = False
    memory_bytes: int = 4 * 2**30
    state: Path | None = None
    checkpoint_every: int = 100
    keep: float = 86_400.0
    ledger: Path | None = None

    def __post_init__(self) -> None:
        if self.memory_bytes < 1:
            raise ValueError(f"memory_bytes {self.memory_bytes}: must be at least 1")
        if self.checkpoint_every < 1:
            raise ValueError(f"checkpoint_every {self.checkpoint_every}: must be at least 1")
        if not self.keep > 0:
            raise ValueError(f"keep {self.keep}: must be more than 0 seconds")
        if self.ledger is not None and self.state is None:
            raise ValueError(
                f"ledger {str(self.ledger)!r}: tells of checkpoints, too; give a folder for these as state"
            )


class Jobs:
    """All jobs of a process.

    Args:
        config: What it may hold, and where it keeps it.

    Raises:
        UnavailableError: Another process has the folder.
        OSError: The folder cannot be used.
    """

    def __init__(self, config: ParameterServerConfig) -> None:
        self._config = config
        self._jobs: dict[str, ShardJob] = {}
        self._store = Store(config.state, config.ledger) if config.state else None
        self._next_sweep: float | None = None
        self._coming: dict[str, Future[tuple[JobStore, ShardCheckpoint] | None]] = {}  # from the folder
        self._leaving: dict[str, JobStore] = {}  # whose last checkpoint may still be on its way to the folder
        self._tell = LimitedLog(log, _LINES, "%d more lines about jobs were left out")

    def __iter__(self) -> Iterator[ShardJob]:
        return iter(self._jobs.values())

    @property
    def all(self) -> list[ShardJob]:
        """All of them; from any thread."""
        return list(self._jobs.values())

    def find(self, name: str) -> ShardJob | None:
        """A job, which may have to come back from the folder first.

        Raises:
            UnavailableError: It is being read.
            InvalidRequestError: There is no room for it.
        """
        hosted = self._jobs.get(name)
        if hosted is not None or self._store is None or not self._store.has(name):
            return hosted
        if (leaving := self._leaving.get(name)) is not None and leaving.is_writing:
            raise UnavailableError(f"job {name!r}: its checkpoint is being written")
        self._leaving.pop(name, None)
        coming = self._coming.get(name)
        if coming is None:
            coming = self._coming[name] = self._store.bring(name)
        if not coming.done():
            raise UnavailableError(f"job {name!r}: its checkpoint is being read")
        del self._coming[name]
        brought = coming.result()
        return self._come_back(name, *brought) if brought is not None else None

    def add(
        self, name: str, layout: Layout, synchronisation: Synchronisation, model: Model | None
    ) -> ShardJob:
        """Begin to hold a new job.

        Raises:
            InvalidRequestError: There is no room for it, or it cannot be deterministic.
        """
        shard = self._make_shard(layout, synchronisation)
        self.make_room(layout.nbytes)
        hosted = ShardJob(name, shard, synchronisation, model, self._config.checkpoint_every)
        if self._store is not None and synchronisation.mode == "bsp":
            hosted.store = self._store.job(name)
        elif self._store is not None:
            self._tell(
                logging.WARNING,
                "job %s: no checkpoints, there are none with %s",
                name,
                synchronisation.mode,
                extra=log_fields(name),
            )
        self._tell(
            logging.INFO,
            "job %s: %d %s parameters, %s",
            name,
            layout.elements,
            layout.dtype,
            layout.optimizer,
            extra=log_fields(name),
        )
        self._jobs[name] = hosted
        return hosted

    def make_room(self, nbytes: int) -> None:
        """Drop jobs that everybody has left, oldest first, until `nbytes` more are allowed.

        Raises:
            InvalidRequestError: They are not, even then.
        """
        left = sorted(
            (hosted.left_at, name) for name, hosted in self._jobs.items() if hosted.left_at is not None
        )
        while self._used() + nbytes > self._config.memory_bytes and left:
            self._drop(left.pop(0)[1])
        if self._used() + nbytes > self._config.memory_bytes:
            raise InvalidRequestError(
                f"parameters of {nbytes} bytes: this shard may hold {self._config.memory_bytes}, "
                f"of which {self._used()} are in use; use more shards, or allow it more"
            )

    def forget(self, now: float) -> None:
        """Drop jobs that everybody has left long ago."""
        self._tell.tick()
        self._leaving = {name: store for name, store in self._leaving.items() if store.is_writing}
        for name, hosted in list(self._jobs.items()):
            if hosted.left_at is not None and now - hosted.left_at > _FORGET_SECONDS:
                self._drop(name)
        if self._next_sweep is None:
            # Workers have time to come back, however long this process was away and whatever its clock says.
            self._next_sweep = now + self._config.keep
        if self._store is not None and now >= self._next_sweep:
            self._next_sweep = now + _SWEEP_SECONDS
            self._store.remove_old(self._config.keep, {*self._jobs, *self._coming, *self._leaving})

    def close(self) -> None:
        """Write down where the jobs are."""
        stores = [*self._leaving.values()]
        for hosted in self._jobs.values():
            hosted.save()
            if hosted.store is not None:
                stores.append(hosted.store)
            hosted.store = None  # calls may still come
        for store in stores:
            store.close()
        if self._store is not None:
            self._store.close()

    def _come_back(self, name: str, store: JobStore, checkpoint: ShardCheckpoint) -> ShardJob:
        """A job from its newest checkpoint."""
        self.make_room(checkpoint.snapshot.layout.nbytes)
        shard = Shard(checkpoint.snapshot.layout, self._config.deterministic)
        shard.restore(checkpoint.snapshot)
        hosted = ShardJob(
            name,
            shard,
            checkpoint.synchronisation,
            checkpoint.model,
            self._config.checkpoint_every,
            store,
            attempt=checkpoint.attempt,
            left_at=time.monotonic(),
        )
        store.note({"restored": shard.version, "attempt": hosted.attempt})
        self._tell(
            logging.INFO,
            "job %s: back from its checkpoint of version %d",
            name,
            shard.version,
            extra=log_fields(name, attempt=hosted.attempt, iteration=shard.version),
        )
        self._jobs[name] = hosted
        return hosted

    def _make_shard(self, layout: Layout, synchronisation: Synchronisation) -> Parameters:
        if self._config.deterministic and synchronisation.mode != "bsp":
            raise InvalidRequestError(
                f"synchronisation {synchronisation.mode!r}: this parameter server was started with "
                f"--deterministic, which only bsp can be"
            )
        if synchronisation.asynchronous:
            return AsynchronousShard(layout)
        if synchronisation.replicas_to_aggregate is not None:
            return BackupShard(layout, synchronisation.replicas_to_aggregate)
        return Shard(layout, self._config.deterministic)

    def _used(self) -> int:
        return sum(hosted.nbytes for hosted in self._jobs.values())

    def _drop(self, name: str) -> None:
        self._tell(logging.INFO, "job %s: dropped, everybody has left", name, extra=log_fields(name))
        hosted = self._jobs.pop(name)
        hosted.save()
        if hosted.store is not None:
            self._leaving[name] = hosted.store  # it may have to come back at once
            hosted.store.close(wait=False)
