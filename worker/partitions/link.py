"""The exchange of samples that keeps a worker's partition in balance with its peers' while it trains.

Threads of its own report progress and hand samples over; training waits for nothing but locks on memory. The
decisions are in `partition` and, at the manager, in `batchsize_manager.partitions`.
"""

import threading
import time
import uuid
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import idl
from idl.errors import (
    ConnectionLostError,
    DeadlineExceededError,
    EvenpaceError,
    InvalidRequestError,
    NotMemberError,
    ProtocolError,
    UnavailableError,
)
from rpc.address import Address
from rpc.client import Client
from rpc.credentials import Credentials
from rpc.field_log import FieldLog
from rpc.server import Security
from worker.partitions.handover import CALL_SECONDS, PeerServer, PeerService, pack, send
from worker.partitions.partition import Chunk, OtherWorker, Partition, ReceivedSample, TransferOutcome
from worker.partitions.samples import SampleForm

_wire = idl.data_partition

_CHUNK_SAMPLES, _CHUNK_BYTES = 256, 2**20  # most that is handed over in one call
_LEAVE_SECONDS = 1.0  # for the call of `leave`
_POLL_SECONDS = 0.1  # between calls of `join`, until all workers have joined
_REPORT_SECONDS = 1.0  # between reports
_REPORT_TRAVERSALS = 0.25  # traversals after which a report is sent earlier
_RETRY_SECONDS = 0.5  # after a call that failed


@dataclass(frozen=True)
class PartitionConfig:
    """Settings of a worker's partition.

    Raises:
        InvalidRequestError: Its peers could not reach the address `listen`.
    """

    manager: Address  # the DataPartitionManager's address
    job: str  # the job's name
    worker: str  # this worker's name
    # The address at which its peers reach it; port 0 chooses a free one.
    listen: Address = field(default_factory=lambda: Address("127.0.0.1", 0))
    seed: int = 0  # seed of the order of its samples
    room: int = 2**30  # most bytes of other workers' samples that it takes
    connect_timeout: float = 30.0  # seconds in which the manager must be reached
    start_timeout: float = 600.0  # seconds in which all workers must have joined
    # This worker's certificate and token, where the services require them.
    credentials: Credentials | None = None
    insecure: bool = False  # whether it may listen to other machines without TLS

    def __post_init__(self) -> None:
        if self.listen.host in ("0.0.0.0", "::"):
            raise InvalidRequestError(
                f"listen {self.listen}: name the address of this machine at which the other workers reach it"
            )


class PartitionLink:
    """A worker's partition, joined with its peers'; the constructor waits until all workers have joined.

    Args:
        samples: Number of samples in this worker's own data set.
        read: Reads one of them by its index; called by one thread at a time.
        form: The samples' form.

    Raises:
        EvenpaceError: The manager cannot be reached or refuses, or not all workers have joined in time.
    """

    def __init__(
        self, config: PartitionConfig, samples: int, read: Callable[[int], Any], form: SampleForm
    ) -> None:
        self.dataset_size = 0  # samples of all workers together
        self._config = config
        self._log = FieldLog(__name__, lambda: {"job": config.job, "worker": config.worker})
        self._samples = samples
        self._read_one = read
        self._form = form
        self._reading = threading.Lock()
        self._change = threading.Condition()  # guards what follows
        seeds = (config.seed, zlib.crc32(config.worker.encode()))  # each worker has an order of its own
        self._partition = Partition(samples, uuid.uuid4().hex, seeds, config.room)
        self._addresses: dict[str, Address] = {}
        self._unreported = 0  # samples drawn since the last report
        self._closed = False
        self._due = threading.Event()  # set when a report is to be sent
        self._manager = Client(
            _wire.DataPartitionManager,
            config.manager,
            "DataPartitionManager",
            connect_timeout=config.connect_timeout,
            call_timeout=CALL_SECONDS,
            credentials=config.credentials,
            log=self._log,
        )
        # A worker shows its certificate to its peers, and its token to the services only.
        self._credentials = replace(config.credentials or Credentials(), token=None)
        # Peers know this worker's incarnation from the manager, which requires tokens: TLS is enough here.
        security = Security(self._credentials, insecure=config.insecure or self._credentials.tls)
        self._server = PeerServer(PeerService(config.job, form, self._take), config.listen, security)
        self.address = self._server.address  # the address at which its peers reach it
        try:
            self._join(config.connect_timeout)
        except BaseException:
            self._server.close()
            self._manager.close()
            raise
        self._threads = [
            threading.Thread(target=target, name=f"evenpace-partition-{name}", daemon=True)
            for name, target in (("reports", self._report_all), ("moves", self._move_all))
        ]
        for thread in self._threads:
            thread.start()

    def draw(self, count: int, iteration: int) -> list[Any]:
        """Return the next `count` samples of this worker's partition, for an iteration of the job."""
        with self._change:
            drawn = self._partition.draw(count, iteration)
            self._unreported += count
            if self._unreported >= _REPORT_TRAVERSALS * len(self._partition):
                self._due.set()
        return [
            sample.sample if isinstance(sample, ReceivedSample) else self._read(sample) for sample in drawn
        ]

    def __len__(self) -> int:
        """Return the number of samples that this worker has at present."""
        with self._change:
            return len(self._partition)

    def close(self) -> None:
        """Leave; samples that this worker was handed go back to their origins."""
        with self._change:
            if self._closed:
                return
            self._closed = True
            self._change.notify_all()
        self._due.set()
        self._manager.abandon(ConnectionLostError("this worker is leaving"))
        for thread in self._threads:
            thread.join(2 * CALL_SECONDS)
        leaving = self._manager.twin()
        try:
            leaving.call("leave", _wire.LeaveRequest(self._identity()), timeout=_LEAVE_SECONDS)
        except EvenpaceError as error:
            self._log.debug("leave: %s", error)
        leaving.close()
        self._manager.close()
        self._server.close()

    # -- the peers' thread

    def _take(
        self,
        sender: OtherWorker,
        receiver: str,
        number: int,
        received: Sequence[ReceivedSample],
        returned: Sequence[int],
    ) -> None:
        with self._change:
            self._partition.take(sender, receiver, number, received, returned)

    # -- the thread that reports

    def _report_all(self) -> None:
        failing = False
        while not self._closed:
            self._due.wait(_RETRY_SECONDS if failing else _REPORT_SECONDS)
            self._due.clear()
            try:
                self._report()
                failing = False
            except NotMemberError as error:
                self._log.warning("%s; starting again with this worker's own samples", error)
                with self._change:
                    self._partition.evict(uuid.uuid4().hex)
                self._rejoin()
            except EvenpaceError as error:
                if not (failing or self._closed):
                    self._log.warning("samples are not balanced for now: %s", error)
                failing = True
                self._due.clear()

    def _report(self) -> None:
        with self._change:
            progress = self._partition.progress()
            self._unreported = 0
        request = _wire.ReportRequest(
            identity=self._identity(),
            generation=progress.generation,
            samples=progress.samples,
            drawn=progress.drawn,
            iterations=progress.iterations,
            moved=progress.moved,
        )
        self._apply(self._manager.call("report", request))

    def _rejoin(self) -> None:
        """Join as another incarnation; retry without a time-out."""
        while not self._closed:
            try:
                self._join(CALL_SECONDS)
            except EvenpaceError as error:
                self._log.warning("samples are not balanced for now: %s", error)
                self._due.wait(_RETRY_SECONDS)
            else:
                return

    def _join(self, call_seconds: float) -> None:
        deadline = time.monotonic() + self._config.start_timeout
        address = str(self.address)
        request = _wire.JoinRequest(self._identity(), address, self._samples)
        while not self._closed:
            try:
                reply = self._manager.call("join", request, timeout=call_seconds)
            except UnavailableError:
                if time.monotonic() > deadline:
                    raise
                continue  # an earlier process of this name is not known to be dead yet
            if reply.ready:
                with self._change:
                    self._partition.rejoin()
                self.dataset_size = self.dataset_size or reply.dataset_size
                self._apply(reply)
                return
            if time.monotonic() > deadline:
                raise DeadlineExceededError(
                    f"not all workers came to the DataPartitionManager in {self._config.start_timeout:g} s"
                )
            time.sleep(_POLL_SECONDS)

    def _apply(self, reply: Any) -> None:
        """Take members and moves from the manager's answer."""
        if reply.identity != self._identity():
            raise ProtocolError(f"an answer for {reply.identity}, not for {self._identity()}")
        with self._change:
            if reply.generation != self._partition.generation:
                members = reply.members or ()
                self._addresses = {member.worker: Address.parse(member.address) for member in members}
                self._partition.note(
                    reply.generation, {member.worker: member.incarnation for member in members}
                )
                self._due.set()
            self._partition.plan({move.receiver: move.samples for move in reply.moves or ()})
            self._change.notify_all()

    # -- the thread that hands samples over

    def _move_all(self) -> None:
        limit = max(1, min(_CHUNK_SAMPLES, _CHUNK_BYTES // max(1, self._form.size)))
        packed: tuple[Chunk | None, Any] = (None, None)  # read once: a repeated call must send the same
        while True:
            with self._change:
                self._change.wait_for(lambda: self._closed or self._partition.next_chunk(limit) is not None)
                chunk = self._partition.next_chunk(limit)
                if self._closed or chunk is None:
                    return
                address = self._addresses[chunk.receiver.worker]
            try:
                if packed[0] is not chunk:
                    packed = (chunk, pack(self._identity(), chunk, self._form, self._read))
            except Exception as error:  # noqa: BLE001 - whatever a data set raises
                self._log.warning("samples of this worker cannot be moved: %s", error)
                outcome: TransferOutcome | None = TransferOutcome.REFUSED
            else:
                outcome = send(chunk, address, packed[1], self._credentials, self._log)
            with self._change:
                if outcome is None:
                    self._change.wait_for(lambda: self._closed, _RETRY_SECONDS)
                else:
                    self._partition.settle(chunk, outcome)
                if self._partition.progress().moved:
                    self._due.set()

    # -- shared

    def _read(self, index: int) -> Any:
        with self._reading:
            return self._read_one(index)

    def _identity(self) -> Any:
        return idl.common.Identity(self._config.job, self._config.worker, self._partition.incarnation)
