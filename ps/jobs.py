"""The jobs of a shard process: their memory, their return from the folder of checkpoints, and their removal.

This module knows neither calls nor bytes on the wire: those are for `service`.
"""

import contextlib
import logging
import time
from collections.abc import Iterator
from concurrent.futures import Future

from idl.errors import EvenpaceError, InvalidRequestError, RewoundError, UnavailableError
from idl.layout import Layout
from idl.synchronisation import Synchronisation
from ps.asynchronous_shard import AsynchronousShard
from ps.backup_shard import BackupShard
from ps.checkpoint import ShardCheckpoint
from ps.checkpoint_store import CheckpointStore, JobStore
from ps.config import ParameterServerConfig
from ps.exact_shard import ExactShard
from ps.log_fields import log_fields
from ps.model_tensors import ModelTensors
from ps.parameters import Parameters
from ps.shard import Shard
from ps.shard_job import ShardJob
from rpc.limited_log import LimitedLog

log = logging.getLogger(__name__)

_LINES = 50  # of one level of log about jobs, per second
_FORGET_SECONDS = 600.0  # for which a job without connections stays in memory
_SWEEP_SECONDS = 60.0  # between looks at the folder


class Jobs:
    """All jobs of a shard process.

    Raises:
        UnavailableError: Another process uses the folder.
        OSError: The folder cannot be used.
    """

    def __init__(self, config: ParameterServerConfig) -> None:
        self._config = config
        self._jobs: dict[str, ShardJob] = {}
        self._store = CheckpointStore(config.state, config.ledger) if config.state else None
        self._next_sweep: float | None = None
        self._loading: dict[
            str, Future[tuple[JobStore, ShardCheckpoint] | None]
        ] = {}  # reading from the folder
        self._closing: dict[str, JobStore] = {}  # their last checkpoints may not be written yet
        self._failed: dict[str, int] = {}  # by job: the version at which its state was lost last
        self._log = LimitedLog(log, _LINES, "%d more lines about jobs were left out")

    def __iter__(self) -> Iterator[ShardJob]:
        return iter(self._jobs.values())

    @property
    def all(self) -> list[ShardJob]:
        """Return all jobs; may be called from any thread."""
        return list(self._jobs.values())

    def find(self, name: str) -> ShardJob | None:
        """Find a job in memory, or begin to read its checkpoint from the folder.

        Raises:
            UnavailableError: Its checkpoint is being read or written; a later call may find it.
            InvalidRequestError: There is not enough memory for it, or there are too many jobs.
        """
        job = self._jobs.get(name)
        if job is not None or self._store is None or not self._store.has(name):
            return job
        if (closing := self._closing.get(name)) is not None and closing.is_writing:
            raise UnavailableError(f"job {name!r}: its checkpoint is being written")
        self._closing.pop(name, None)
        loading = self._loading.get(name)
        if loading is None:
            loading = self._loading[name] = self._store.load(name)
        if not loading.done():
            raise UnavailableError(f"job {name!r}: its checkpoint is being read")
        del self._loading[name]
        loaded = loading.result()
        return self._restore(name, *loaded) if loaded is not None else None

    def add(
        self, name: str, layout: Layout, synchronisation: Synchronisation, model: ModelTensors | None
    ) -> ShardJob:
        """Begin to hold a new job.

        Raises:
            InvalidRequestError: There is not enough memory for it, or there are too many jobs; or its mode
                cannot be deterministic.
        """
        shard = self._make_shard(layout, synchronisation)
        self.make_room(shard.nbytes, jobs=1)
        job = ShardJob(name, shard, synchronisation, model, self._config.checkpoint_every)
        if self._store is not None and synchronisation.mode == "bsp":
            job.store = self._store.job(name)
        elif self._store is not None:
            self._log(
                logging.WARNING,
                "job %s: no checkpoints, there are none with %s",
                name,
                synchronisation.mode,
                extra=log_fields(name),
            )
        self._log(
            logging.INFO,
            "job %s: %d %s parameters, %s",
            name,
            layout.elements,
            layout.dtype,
            layout.optimizer,
            extra=log_fields(name),
        )
        self._jobs[name] = job
        return job

    def make_room(self, nbytes: int, jobs: int = 0) -> None:
        """Drop jobs without connections, longest without first, until there is room for more.

        Args:
            nbytes: Bytes that are to fit into the memory.

        Raises:
            InvalidRequestError: There is no room even then.
        """
        most = self._config.jobs

        def fits() -> bool:
            return self._used() + nbytes <= self._config.memory_bytes and len(self._jobs) + jobs <= most

        left = sorted((job.left_at, name) for name, job in self._jobs.items() if job.left_at is not None)
        while left and not fits():
            self._drop(left.pop(0)[1])
        if len(self._jobs) + jobs > most:
            raise InvalidRequestError(
                f"this shard may hold {most} jobs, and has as many with workers: use another one, or start "
                f"it with a larger --max-jobs"
            )
        if not fits():
            raise InvalidRequestError(
                f"{nbytes} bytes for parameters, gradients and the optimiser's state: this shard may hold "
                f"{self._config.memory_bytes}, of which {self._used()} are in use; use more shards, or start "
                f"it with a larger --memory-mib, or with --whole-steps, with which a job takes less"
            )

    def lose(self, job: ShardJob, error: Exception) -> EvenpaceError:
        """Drop a job whose state a failure has left half changed; its newest checkpoint is read when needed.

        Args:
            error: The failure.

        Returns:
            The error for its workers: by which they recover, or at the second failure at a version, and
            without checkpoints, end.
        """
        version, name = job.shard.version, job.name
        failed = f"the shard failed at version {version} ({type(error).__name__}: {error})"
        lost: EvenpaceError = RewoundError(f"{failed}: the shard goes back to its checkpoint", job.attempt)
        if job.store is None:
            lost = InvalidRequestError(
                f"{failed}, and this shard keeps no checkpoints of the job: its log has the details. With "
                f"`evenpace ps --state DIR`, a job in mode bsp goes back to its checkpoint"
            )
        elif self._failed.get(name) == version:
            lost = InvalidRequestError(
                f"{failed} again, after the job had gone back: the shard's log has why"
            )
        log.error("job %s: %s", name, lost, extra=log_fields(name), exc_info=error)
        self._failed[name] = version
        if self._jobs.get(name) is job:
            self._remove(name)
        return lost

    def forget(self, now: float) -> None:
        """Drop jobs that have had no connection for long, from memory and from the folder.

        Args:
            now: Seconds, from `time.monotonic`.
        """
        self._log.tick()
        self._closing = {name: store for name, store in self._closing.items() if store.is_writing}
        for name, job in list(self._jobs.items()):
            if job.left_at is not None and now - job.left_at > _FORGET_SECONDS:
                self._drop(name)
        if self._next_sweep is None:
            # Workers have time to come back, however long this process was away and whatever its clock says.
            self._next_sweep = now + self._config.keep
        if self._store is not None and now >= self._next_sweep:
            self._next_sweep = now + _SWEEP_SECONDS
            self._store.remove_old(self._config.keep, {*self._jobs, *self._loading, *self._closing})

    def close(self) -> None:
        """Write checkpoints of each job, and close the folder."""
        stores = [*self._closing.values()]
        for job in self.all:
            try:
                job.save_last()
            except Exception as error:  # noqa: BLE001 - it must not keep others from theirs
                self.lose(job, error)
            if job.store is not None:
                stores.append(job.store)
            job.store = None  # calls may still come
        for store in stores:
            store.close()
        if self._store is not None:
            self._store.close()

    def _restore(self, name: str, store: JobStore, checkpoint: ShardCheckpoint) -> ShardJob:
        """Hold a job again, as its newest checkpoint has it."""
        with contextlib.ExitStack() as stack:
            stack.callback(store.close, wait=False)
            shard = self._make_shard(checkpoint.snapshot.layout, checkpoint.synchronisation)
            beside = 0 if checkpoint.untrained is None else checkpoint.untrained.nbytes
            self.make_room(shard.nbytes + beside, jobs=1)
            shard.restore(checkpoint.snapshot)
            stack.pop_all()
        job = ShardJob(
            name,
            shard,
            checkpoint.synchronisation,
            checkpoint.model,
            self._config.checkpoint_every,
            checkpoint.part,
            store,
            attempt=checkpoint.attempt,
            left_at=time.monotonic(),
            places=dict(checkpoint.places),
            untrained=checkpoint.untrained,
        )
        shard.place = job.places.get(shard.version)
        store.append_to_ledger({"restored": shard.version, "attempt": job.attempt})
        self._log(
            logging.INFO,
            "job %s: restored from its checkpoint of version %d",
            name,
            shard.version,
            extra=log_fields(name, attempt=job.attempt, iteration=shard.version),
        )
        self._jobs[name] = job
        return job

    def _make_shard(self, layout: Layout, synchronisation: Synchronisation) -> Parameters:
        if self._config.deterministic and synchronisation.mode != "bsp":
            raise InvalidRequestError(
                f"synchronisation {synchronisation.mode!r}: this parameter server was started with "
                f"--deterministic, which only bsp can be"
            )
        if synchronisation.exact:
            return ExactShard(layout)
        if synchronisation.is_asynchronous:
            return AsynchronousShard(layout)
        if synchronisation.replicas_to_aggregate is not None:
            return BackupShard(layout, synchronisation.replicas_to_aggregate)
        return Shard(layout, self._config.deterministic, not self._config.whole_steps)

    def _used(self) -> int:
        return sum(job.nbytes for job in self._jobs.values())

    def _drop(self, name: str) -> None:
        self._log(logging.INFO, "job %s: dropped, all workers have left", name, extra=log_fields(name))
        self._jobs[name].save()
        self._failed.pop(name, None)
        self._remove(name)

    def _remove(self, name: str) -> None:
        job = self._jobs.pop(name)
        if job.store is not None:
            self._closing[name] = job.store  # it may be asked for again at once
            job.store.close(wait=False)
