"""The interface of a service to its server, and the call that a service answers."""

from typing import Any, Protocol

from thriftpy2.thrift import TApplicationException, TMessageType

from idl.errors import DECLARED, EvenpaceError
from rpc import codec
from rpc.counters import MethodTally

_OUTCOMES = {error: name for name, error in DECLARED.items()}


class Connection(Protocol):
    """A connection that calls come on, as services know it."""

    active_at: float  # the time at which bytes last arrived or an answer was sent; seconds, monotonic clock

    def answer(self, parts: list[bytes | memoryview], *, is_whole: bool = True) -> None:
        """Send one answer, or a part of one, unless the connection has ended."""

    def abort(self) -> None:
        """End the connection at once, as where the rest of an answer will not come."""

    def is_sending(self) -> bool:
        """Return whether bytes of an answer have not left this process yet."""


class Sink(Protocol):
    """A receiver of the bytes of one bulk field as they arrive."""

    def get_buffer(self) -> memoryview:
        """Return the memory for the next bytes: never empty, and never longer than the rest of the field."""

    def advance(self, count: int) -> None:
        """Take `count` bytes that have been written to the start of the buffer."""

    def abort(self) -> None:
        """Give up the field: its rest will not arrive."""


class Discard:
    """A sink that drops a bulk field, since its call is refused or not needed."""

    def __init__(self, length: int) -> None:
        self._left = length
        self._buffer = memoryview(bytearray(min(length, 2**16)))

    def get_buffer(self) -> memoryview:
        """Return a buffer that is overwritten each time."""
        return self._buffer[: self._left]

    def advance(self, count: int) -> None:
        """Count the bytes."""
        self._left -= count

    def abort(self) -> None:
        """Do nothing."""


class Call:
    """One call, to be answered exactly once, now or later."""

    __slots__ = (
        "_head",
        "_header",
        "_result_type",
        "_tail",
        "_tally",
        "_unsent",
        "peer",
        "request",
        "since",
        "sink",
    )

    def __init__(
        self, header: codec.Header, request: Any, result_type: type, peer: Connection, tally: MethodTally
    ) -> None:
        self._header = header
        self._result_type = result_type
        self.request = request  # the first argument, a Thrift struct, or None where the peer left it out
        self.peer = peer  # the connection that it came on; the same object for all calls of one connection
        self._tally = tally
        self.since = peer.active_at  # when it had arrived, in the monotonic clock's seconds
        # The sink that `Service.open_sink` returned for the call's bulk field, if it has one.
        self.sink: Sink | None = None
        self._unsent = 0  # bytes of the bulk field of an answer that was begun,
        self._head = self._tail = b""  # and what is sent before and after them

    @property
    def method(self) -> str:
        """Return the name of the method called."""
        return self._header.method

    @property
    def log_fields(self) -> dict[str, str]:
        """Return the structured fields of log lines about this call."""
        identity = getattr(self.request, "identity", None)
        named = {name: getattr(identity, name, None) for name in ("job", "worker")}
        return {"method": self.method} | {k: value for k, value in named.items() if type(value) is str}

    def reply(self, value: Any, bulk: memoryview | None = None) -> None:
        """Answer with a struct; `bulk` replaces its last field, an empty binary."""
        if bulk is not None:
            self.begin_reply(value, bulk.nbytes)
            self.send(bulk)
        else:
            self.peer.answer([codec.frame(self._encode(self._result_type(success=value)))])
            self._count("ok")

    def begin_reply(self, value: Any, length: int) -> None:
        """Begin to answer with a struct, whose last field, an empty binary, is replaced by what `send` sends.

        Args:
            value: The struct.
            length: The bytes to be sent.
        """
        message = self._encode(self._result_type(success=value))
        self._head, self._tail = codec.frame_around_bulk(message, 2, length)
        self._unsent = length

    def send(self, part: memoryview) -> None:
        """Send the next bytes of an answer that was begun; with the last of them it has been given."""
        self._unsent -= part.nbytes
        is_whole = not self._unsent
        head, self._head = self._head, b""
        parts: list[bytes | memoryview] = [head, part, self._tail if is_whole else b""]
        self.peer.answer([one for one in parts if len(one)], is_whole=is_whole)
        if is_whole:
            self._count("ok")

    def fail(self, error: EvenpaceError) -> None:
        """Answer with a declared exception."""
        result = codec.failure(self._result_type, error)
        if result is None:
            self.crash(str(error))
        else:
            self.peer.answer([codec.frame(self._encode(result))])
            self._count(_OUTCOMES[type(error)])

    def crash(self, text: str) -> None:
        """Answer with an exception that the service does not declare, since the service itself has failed."""
        self.peer.answer(
            [codec.application_exception(self._header, TApplicationException.INTERNAL_ERROR, text)]
        )
        self._count("failed")

    def _count(self, outcome: str) -> None:
        self._tally.count(outcome, self.peer.active_at - self.since)

    def _encode(self, result: Any) -> bytes:
        reply = codec.Header(self._header.method, TMessageType.REPLY, self._header.sequence_id)
        return codec.encode(reply, result)


class Service(Protocol):
    """A service, as its server calls it."""

    definition: type  # the Thrift service
    bulk_methods: frozenset[str]  # the methods whose second argument is a bulk field

    def handle(self, call: Call) -> None:
        """Handle a call: raise an `EvenpaceError` to refuse it, or answer it, now or later."""

    def open_sink(self, call: Call, length: int) -> Sink:
        """Return the sink for the `length` bytes of the call's bulk field; may refuse likewise."""

    def disconnected(self, peer: Connection) -> None:
        """Handle the end of a connection, whose unanswered calls need no answer."""

    def tick(self, now: float) -> None:
        """Check deadlines; called several times a second. `now` is in seconds, from `time.monotonic`."""

    def stop(self) -> None:
        """Answer or refuse all unanswered calls."""
