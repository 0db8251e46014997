"""The handover of samples between workers: the call, and each worker's server for it, in a thread.

This module checks requests, and knows neither when samples move nor what they are used for.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import idl
from idl import check
from idl.errors import EvenpaceError, InvalidRequestError, NotMemberError, ProtocolError
from rpc.address import Address
from rpc.client import Client
from rpc.credentials import Credentials
from rpc.field_log import FieldLog
from rpc.limits import ServerLimits
from rpc.server import Security, Server
from rpc.service import Call, Connection, Sink
from worker.partitions.partition import Chunk, OtherWorker, ReceivedSample, TransferOutcome
from worker.partitions.samples import SampleForm

_wire = idl.data_partition

MAX_CHUNK = 100_000  # samples
MAX_CHUNK_BYTES = 64 * 2**20
CALL_SECONDS = 5.0  # until a call is given up, to be repeated
_LIMITS = ServerLimits(frame_bytes=MAX_CHUNK_BYTES, bulk_bytes=1, connections=1000)

Take = Callable[[OtherWorker, str, int, Sequence[ReceivedSample], Sequence[int]], None]


def pack(identity: Any, chunk: Chunk, form: SampleForm, read: Callable[[int], Any]) -> Any:
    """Make the request that hands a chunk over.

    Args:
        identity: The sender's `Identity` of common.thrift.
        form: The form of the sender's samples.
        read: Reads one of them by its index.

    Raises:
        InvalidRequestError: A sample is not of this form.
    """
    return _wire.TakeRequest(
        identity=identity,
        receiver=chunk.receiver.incarnation,
        number=chunk.number,
        samples=[form.pack(index, read(index)) for index in chunk.own],
        returned=[sample.index for sample in chunk.returned],
    )


def send(
    chunk: Chunk,
    address: Address,
    request: Any,
    credentials: Credentials,
    log: FieldLog,
) -> TransferOutcome | None:
    """Hand a chunk over, and return the outcome; None if it is unknown whether the receiver has it."""
    name, log = f"worker {chunk.receiver.worker}", log.of(__name__)
    client = Client(
        _wire.PartitionPeer,
        address,
        name,
        connect_timeout=CALL_SECONDS,
        call_timeout=CALL_SECONDS,
        credentials=credentials,
        log=log,
    )
    try:
        reply = client.call("take", request)
        if reply.identity != request.identity or reply.number != chunk.number:
            raise ProtocolError(f"an answer for chunk {reply.number}, not {chunk.number}")
    except NotMemberError:
        return TransferOutcome.GONE
    except InvalidRequestError as error:
        log.warning("%s takes no samples: %s", name, error)
        return TransferOutcome.REFUSED
    except EvenpaceError as error:
        log.warning("%s may not have its samples yet: %s", name, error)
        return None
    finally:
        client.close()
    return TransferOutcome.TAKEN


class PeerService:
    """Serves `PartitionPeer` of `idl/data_partition.thrift`; see `rpc.service.Service`.

    Args:
        job: The job whose samples are taken.
        form: The samples' form.
        take: Takes a chunk, as `Partition.take` does; called by the server's thread.
    """

    definition = _wire.PartitionPeer
    bulk_methods: frozenset[str] = frozenset()

    def __init__(self, job: str, form: SampleForm, take: Take) -> None:
        self._job = job
        self._form = form
        self._take = take

    def handle(self, call: Call) -> None:
        """Take a chunk."""
        request = call.request
        if request is None:
            raise InvalidRequestError(f"{call.method}: argument 1, request, is missing")
        job, worker, incarnation = check.identity(request.identity)
        if job != self._job:
            raise InvalidRequestError(f"job {job!r}: this worker is in {self._job!r}")
        receiver = check.text("receiver", request.receiver)
        number = check.integer("number", request.number, 1)
        for name, chunk in (("samples", request.samples), ("returned", request.returned)):
            if type(chunk) is not list or len(chunk) > MAX_CHUNK:
                raise InvalidRequestError(f"{name}: must be a list of at most {MAX_CHUNK}")
        sender = OtherWorker(worker, incarnation)
        received = [ReceivedSample(sender, *self._form.unpack(sample)) for sample in request.samples]
        returned = [check.integer("returned", index, 0) for index in request.returned]
        self._take(sender, receiver, number, received, returned)
        call.reply(_wire.TakeReply(request.identity, number))

    def open_sink(self, call: Call, length: int) -> Sink:
        """Raise AssertionError, since no method of this service has a bulk field."""
        raise AssertionError(call.method)

    def disconnected(self, peer: Connection) -> None:
        """Do nothing: no state depends on connections."""

    def tick(self, now: float) -> None:
        """Do nothing: no state depends on time."""

    def stop(self) -> None:
        """Do nothing: every call is answered at once."""


class PeerServer:
    """A server of `PeerService` in a thread of this process, until it is closed.

    Args:
        address: The address to listen on; port 0 chooses a free one.
        security: The authentication that it requires of its peers.

    Attributes:
        address: The address that it listens on.

    Raises:
        AddressInUseError, ConnectionLostError: The address cannot be listened on.
    """

    def __init__(self, service: PeerService, address: Address, security: Security) -> None:
        started: Future[tuple[Address, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

        async def run() -> None:
            stop = asyncio.Event()
            try:
                server = Server(service, _LIMITS, security)
                listening = await server.start(address)
            except EvenpaceError as error:
                started.set_exception(error)
                return
            started.set_result((listening, asyncio.get_running_loop(), stop))
            await stop.wait()
            await server.stop(grace=0.5)

        self._thread = threading.Thread(
            target=asyncio.run, args=(run(),), name="evenpace-partition-peer", daemon=True
        )
        self._thread.start()
        self.address, self._loop, self._stop = started.result()

    def close(self) -> None:
        """Stop the server, and wait for its thread."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()
