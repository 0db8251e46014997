"""The DataPartitionManager on the wire: checks requests and feeds them to the jobs' state machines.

All decisions are made in `partitioned_job`; no sample passes through here.
"""

import logging
import time
from typing import Any

import idl
from batchsize_manager.partitions.partitioned_job import PartitionedJob, PartitionsConfig
from idl import check
from idl.errors import InvalidRequestError, NotMemberError, UnavailableError
from idl.traversal import Traversal
from rpc.address import Address
from rpc.limited_log import LimitedLog
from rpc.service import Call, Connection, Sink

log = logging.getLogger(__name__)

_wire = idl.data_partition

_LINES = 50  # log lines about jobs, of one level, per second
_MOST_JOBS = 100  # at once
_MOST_MEMBERS = 5000  # of one job


class DataPartitionService:
    """The server side of `DataPartitionManager` in `idl/data_partition.thrift`; see `rpc.service.Service`.

    Args:
        config: Options of the balance between parts.
    """

    definition = _wire.DataPartitionManager
    bulk_methods: frozenset[str] = frozenset()

    def __init__(self, config: PartitionsConfig) -> None:
        self._config = config
        self._limited_log = LimitedLog(log, _LINES, "%d more lines about jobs were left out")
        self._jobs: dict[str, PartitionedJob] = {}
        self._handlers = {"join": self._join, "report": self._report, "leave": self._leave}

    # -- rpc.service.Service

    def handle(self, call: Call) -> None:
        """Handle a call."""
        if call.request is None:
            raise InvalidRequestError(f"{call.method}: argument 1, request, is missing")
        job, worker, incarnation = check.identity(call.request.identity)
        self._handlers[call.method](call, job, worker, incarnation)
        self._settle(job)

    def open_sink(self, call: Call, length: int) -> Sink:
        """Refuse: no method here has a bulk field."""
        raise AssertionError(call.method)

    def disconnected(self, peer: Connection) -> None:
        """Do nothing: workers are taken out for silence; a new connection is as good as the old one."""

    def tick(self, now: float) -> None:
        """Let the jobs check their deadlines."""
        self._limited_log.tick()
        for name, partitions in list(self._jobs.items()):
            partitions.tick(now)
            self._settle(name)

    def stop(self) -> None:
        """Do nothing: no call is unanswered."""

    @property
    def jobs(self) -> dict[str, PartitionedJob]:
        """The jobs by name; from any thread."""
        return dict(self._jobs)

    # -- methods

    def _join(self, call: Call, job: str, worker: str, incarnation: str) -> None:
        request = call.request
        address = Address.parse(check.text("address", request.address))
        samples = check.integer("samples", request.samples, 1, 2**48 - 1)
        partitions = self._jobs.get(job)
        if partitions is None:
            if len(self._jobs) >= _MOST_JOBS:
                raise UnavailableError(f"{len(self._jobs)} jobs are running; no more are allowed")
            partitions = PartitionedJob(self._config)
        if worker not in partitions.members and partitions.size >= _MOST_MEMBERS:
            raise UnavailableError(f"job {job!r} has {_MOST_MEMBERS} members already")
        partitions.join(worker, incarnation, str(address), samples, time.monotonic())
        self._jobs[job] = partitions
        call.reply(_reply(partitions, request.identity))

    def _report(self, call: Call, job: str, worker: str, incarnation: str) -> None:
        request = call.request
        progress = Traversal(
            check.integer("generation", request.generation, 0),
            check.integer("samples", request.samples, 1, 2**48 - 1),
            check.integer("drawn", request.drawn, 0),
            check.integer("iterations", request.iterations, 0),
            bool(request.moved),
        )
        partitions = self._running(job)
        partitions.report(worker, incarnation, progress, time.monotonic())
        call.reply(_reply(partitions, request.identity, progress.generation))

    def _leave(self, call: Call, job: str, worker: str, incarnation: str) -> None:
        self._running(job).leave(worker, incarnation)
        call.reply(_wire.LeaveReply(identity=call.request.identity))

    def _running(self, job: str) -> PartitionedJob:
        partitions = self._jobs.get(job)
        if partitions is None:
            raise NotMemberError(f"there is no job {job!r}; join first")
        return partitions

    def _settle(self, job: str) -> None:
        """Log the events of a job, and forget it once it has ended."""
        partitions = self._jobs.get(job)
        if partitions is None:
            return
        for event, worker in partitions.events:
            about = {"job": job} if worker is None else {"job": job, "worker": worker}
            self._limited_log(logging.INFO, "job %s: %s", job, event, extra=about)
        partitions.events.clear()
        if not partitions.size:
            self._limited_log(
                logging.INFO, "job %s has ended: all members have gone", job, extra={"job": job}
            )
            del self._jobs[job]


def _reply(partitions: PartitionedJob, identity: Any, known: int | None = None) -> Any:
    """Return the answer to a worker that has noted the members of generation `known`."""
    members = [
        _wire.Member(worker, incarnation, address)
        for worker, (incarnation, address) in partitions.members.items()
    ]
    return _wire.PartitionReply(
        identity=identity,
        ready=partitions.is_ready(identity.worker),
        dataset_size=partitions.dataset_size,
        generation=partitions.generation,
        members=None if known == partitions.generation else members,
        moves=[_wire.Move(move.receiver, move.samples) for move in partitions.moves_of(identity.worker)],
    )
