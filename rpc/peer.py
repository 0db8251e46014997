"""One connection of a server: it reads frames, calls the service, sends answers, and enforces the limits.

Bulk fields go straight from the socket into the buffers of a `Sink`.
"""

import asyncio
import contextlib
import logging
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

from thriftpy2.thrift import TApplicationException, TMessageType

from idl.errors import EvenpaceError, ProtocolError, UnavailableError
from rpc import codec
from rpc.address import Address
from rpc.counters import ServerTally
from rpc.guard import AUTHENTICATE, Guard
from rpc.limits import ServerLimits
from rpc.reloaded_files import Reloaded
from rpc.service import Call, Discard, Service, Sink
from rpc.tokens import ALL_JOBS, TokenKeys

log = logging.getLogger(__name__)

_SCRATCH = 4096  # bytes; an ordinary message fits, and so does the envelope of a large one
_LINGER_SECONDS = 1.0
_TURN_SECONDS = 0.01  # of CPU time, for one connection's calls before other connections are served


class ConnectionServer(Protocol):
    """The server of a connection, as the connection knows it; see `rpc.server.Server`."""

    service: Service
    limits: ServerLimits
    tally: ServerTally
    token_keys: TokenKeys | None
    contexts: Reloaded[ssl.SSLContext] | None
    stopping: bool

    def admit(self, peer: "Peer", host: str) -> str:
        """Admit a new connection; return why it is refused, or an empty text."""

    def trust(self, peer: "Peer") -> None:
        """Note that a connection has been authenticated."""

    def forget(self, peer: "Peer") -> None:
        """Forget a connection that has ended."""

    def reserve(self, count: int) -> bool:
        """Reserve bytes for incomplete messages, or release them; return whether there are as many."""

    def linger(self, peer: "Peer", seconds: float) -> None:
        """Close a refused connection after a time."""

    def warn(self, text: str, fields: Mapping[str, Any]) -> None:
        """Log a peer's misuse."""


class Peer(asyncio.BufferedProtocol):
    """One connection of a server.

    Attributes:
        active_at: When bytes last arrived or an answer was sent, in the monotonic clock's seconds.
    """

    def __init__(self, server: ConnectionServer) -> None:
        self._server = server
        self._service = server.service
        self._limits = server.limits
        self._tally = server.tally
        self._scratch = memoryview(bytearray(_SCRATCH))
        self._filled = 0  # bytes of the scratch that are in use
        self._sink: Sink | None = None
        self._sink_left = 0  # bytes of the bulk field still to come
        self._tail_left = 0  # bytes of the frame after the bulk field still to come
        self._call: Call | _Refusal | None = None  # to be dispatched once the frame is complete
        self._refused = False
        self._in_flight = 0
        self._connected_at = self.active_at = time.monotonic()
        self._frame_since: float | None = None
        self._blocked_since: float | None = None
        self._given = 0  # bytes of answers
        self._taken = 0  # those that have left this process, when deadlines were last checked
        self._paused = False  # nothing more is read until the peer has taken its answers
        self._yielding = False  # nothing more is read until other connections have been served
        self._handshaken = False
        self._guard = Guard(
            self._limits, server.token_keys, self._connected_at, secure=server.contexts is None
        )
        self.name = "?"  # the peer's address

    @property
    def log_fields(self) -> dict[str, str]:
        """Return the structured fields of log lines about this connection."""
        job = self._guard.job
        return {"peer": self.name} if job in (None, ALL_JOBS) else {"peer": self.name, "job": str(job)}

    # -- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Admit or refuse a new connection."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's does not inherit from it
        address = transport.get_extra_info("peername")
        host = address[0] if address else "?"
        self.name = str(Address(*address[:2])) if address else host
        self.transport.set_write_buffer_limits(high=self._limits.unsent_bytes)
        refusal = self._server.admit(self, host)
        if refusal:
            self._refuse(refusal)
        elif self._guard.trusted:
            self._server.trust(self)

    def secured(self) -> None:
        """Note that the TLS handshake has shown a certificate of a trusted authority."""
        self._guard.secured()
        if self._guard.trusted:
            self._server.trust(self)

    def tls_failed(self, text: str) -> None:
        """Refuse the connection, since its TLS handshake has failed."""
        self._refuse(text)

    def connection_lost(self, error: Exception | None) -> None:
        """Clean up after a connection that has ended, on either side."""
        if self._sink is not None:
            self._sink.abort()
            self._sink = None
        self._replace_scratch(0)
        self._server.forget(self)
        self._service.disconnected(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the memory for the next bytes from the socket."""
        if self._refused:
            return self._scratch
        if self._sink_left:
            assert self._sink is not None
            return self._sink.get_buffer()
        if self._tail_left:
            return self._scratch[: self._tail_left]
        return self._scratch[self._filled :]

    def buffer_updated(self, count: int) -> None:
        """Process `count` bytes that have arrived."""
        if self._refused:
            return
        self._tally.received += count
        now = time.monotonic()
        self.active_at = now
        try:
            if self._sink_left:
                self._frame_since = now
                self._feed(count)
            elif self._tail_left:
                self._tail_left -= count
                self._finish_bulk()
            else:
                self._filled += count
                if self._frame_since is None:
                    self._frame_since = now
                self._take_frames(now)
        except Exception as error:  # noqa: BLE001 - no error may leave this peer, or others, waiting
            self._refuse_for(error)

    def pause_writing(self) -> None:
        """Stop reading, since the peer does not take its answers."""
        self._paused = True
        if not self.transport.is_closing():
            self.transport.pause_reading()

    def resume_writing(self) -> None:
        """Read again, since the peer has taken its answers."""
        self._paused = False
        asyncio.get_running_loop().call_soon(self._go_on)  # this may be called while frames are taken

    # -- reading

    def _yield(self) -> None:
        """Let other connections be served first: the calls that one peer sends at once may take long."""
        self._yielding = True
        if not self.transport.is_closing():
            self.transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self._yielding = False
        if self._paused or self.transport.is_closing():
            return
        try:
            if self._filled and not self._refused:
                self._take_frames(time.monotonic())
        except Exception as error:  # noqa: BLE001 - as above
            self._refuse_for(error)
        if not self._paused and not self._yielding and not self.transport.is_closing():
            self.transport.resume_reading()

    def _refuse_for(self, error: Exception) -> None:
        """End the connection, since an error occurred when its bytes were processed."""
        if isinstance(error, ProtocolError):
            self._refuse(str(error))
        else:
            log.error("what %s sent could not be taken", self.name, exc_info=error, extra=self.log_fields)
            self._refuse("internal error; the service's log has the details")

    def _take_frames(self, now: float) -> None:
        scratch, position, filled = self._scratch, 0, self._filled
        began: float | None = None  # CPU time: other processes of a busy machine must not shorten turns
        while filled - position >= 4 and not (self._refused or self._paused or self._yielding):
            (length,) = codec.LENGTH.unpack_from(scratch, position)
            end = position + 4 + length
            if length <= 0 or length > self._guard.frame_bytes + self._guard.bulk_bytes:
                raise self._too_long(length)
            if end > filled:
                if filled - position >= 8:  # refuse another protocol at once
                    codec.check_start(bytes(scratch[position + 4 : position + 8]))
                break
            self._frame_since = None
            self._take_message(bytes(scratch[position + 4 : end]))
            position = end
            if filled - position >= 4:  # more has come at once than one call
                began = time.thread_time() if began is None else began
                if time.thread_time() - began > _TURN_SECONDS:
                    self._yield()
        if self._refused:
            return
        self._filled = filled - position
        if position:
            scratch[: self._filled] = bytes(scratch[position:filled])
            if self._filled:
                self._frame_since = now
        if self._paused or self._yielding:
            self._frame_since = None  # it is this side that does not read on
        elif self._filled == len(self._scratch):
            self._grow_or_stream()
        elif len(self._scratch) > _SCRATCH and self._filled < _SCRATCH // 2:
            self._replace_scratch(_SCRATCH)  # a long message must not occupy memory until the connection ends

    def _grow_or_stream(self) -> None:
        """Find the bulk field of a frame that is longer than the scratch, or enlarge the scratch."""
        (length,) = codec.LENGTH.unpack_from(self._scratch)
        prefix = bytes(self._scratch[4 : self._filled])
        header, _ = codec.read_header(prefix)
        if header.method in self._service.bulk_methods:
            bulk = None
            with contextlib.suppress(codec.CutOffError):
                header, bulk = codec.scan(prefix, length)
            if bulk is not None and bulk.depth == 1:  # an argument itself
                self._start_bulk(header, bulk, prefix, length)
                return
            # What comes before the bulk field is long: read on until the field begins.
            too_long = self._filled >= self._guard.frame_bytes + 4
        else:
            too_long = length > self._guard.frame_bytes
        if too_long:
            raise self._too_long(length)
        # No more than twice the bytes that have arrived: announcing a long frame must not get a peer memory.
        self._replace_scratch(min(length, self._guard.frame_bytes, 2 * self._filled) + 4)

    def _replace_scratch(self, size: int) -> None:
        """Change the scratch's size, and keep its contents."""
        if not self._server.reserve(max(0, size - _SCRATCH) - max(0, len(self._scratch) - _SCRATCH)):
            raise ProtocolError("the service holds too much of unfinished messages; try later")
        other = memoryview(bytearray(size))
        kept = min(self._filled, size)
        other[:kept] = self._scratch[:kept]
        self._scratch = other

    def _too_long(self, length: int) -> ProtocolError:
        strange = "" if self._guard.trusted else " before authentication"
        return ProtocolError(
            f"a frame of {length} bytes; 1 to {self._guard.frame_bytes} are allowed{strange}"
        )

    def _take_message(self, data: bytes) -> None:
        header, _ = codec.scan(data, len(data))
        arguments = self._decode(header, data)
        if arguments is None:
            return
        self.active_at = time.monotonic()
        call = self._new_call(header, arguments)
        if header.method not in self._service.bulk_methods:
            self._dispatch(call)
            return
        payload = memoryview(codec.bulk_field(arguments) or b"")
        prepared = self._open_sink(call, payload.nbytes)
        while payload.nbytes:
            assert self._sink is not None
            buffer = self._sink.get_buffer()
            count = min(len(buffer), payload.nbytes)
            buffer[:count] = payload[:count]
            self._sink.advance(count)
            payload = payload[count:]
        self._sink = None
        self._dispatch(prepared)

    def _start_bulk(self, header: codec.Header, bulk: codec.Bulk, prefix: bytes, frame_length: int) -> None:
        if bulk.position > self._guard.frame_bytes or bulk.length > self._guard.bulk_bytes:
            raise ProtocolError(
                f"{header.method}: a field of {bulk.length} bytes; "
                f"at most {self._guard.bulk_bytes} are allowed"
            )
        arguments = self._decode(header, codec.without_bulk(prefix, bulk))
        if arguments is None:
            return
        self._call = self._open_sink(self._new_call(header, arguments), bulk.length)
        self._sink_left = bulk.length
        self._tail_left = frame_length - bulk.position - 4 - bulk.length
        arrived = memoryview(prefix)[bulk.position + 4 :]
        self._filled = 0
        if len(self._scratch) > _SCRATCH:
            self._replace_scratch(_SCRATCH)
        while arrived.nbytes:
            assert self._sink is not None
            buffer = self._sink.get_buffer()
            count = min(len(buffer), arrived.nbytes)
            buffer[:count] = arrived[:count]
            arrived = arrived[count:]
            self._feed(count)

    def _feed(self, count: int) -> None:
        assert self._sink is not None
        self._sink.advance(count)
        self._sink_left -= count
        if not self._sink_left:
            self._finish_bulk()

    def _finish_bulk(self) -> None:
        if self._tail_left:
            return  # until then the sink may still have to be aborted
        self._sink = None
        self._frame_since = None
        call, self._call = self._call, None
        assert call is not None
        self._dispatch(call)

    def _open_sink(self, call: Call, length: int) -> "Call | _Refusal":
        """Open the call's sink; a refusal is sent after the field has been read and dropped."""
        try:
            self._guard.permit(call)
            call.sink = self._sink = self._service.open_sink(call, length)
        except EvenpaceError as error:
            self._sink = Discard(length)
            return _Refusal(call, error)
        return call

    def _decode(self, header: codec.Header, data: bytes) -> Any | None:
        """Decode the call's arguments; return None where the call has been answered with an error already."""
        definition = self._service.definition
        self._guard.count(self.active_at)
        if header.type not in (TMessageType.CALL, TMessageType.ONEWAY):
            raise ProtocolError(f"message type {header.type}: only calls are expected here")
        if header.method not in definition.thrift_services:  # type: ignore[attr-defined]
            known = ", ".join(definition.thrift_services)  # type: ignore[attr-defined]
            self._in_flight += 1
            self.answer(
                [
                    codec.application_exception(
                        header,
                        TApplicationException.UNKNOWN_METHOD,
                        f"no method {header.method!r}; {definition.__name__} has {known}",
                    )
                ]
            )
            return None
        return codec.decode(data, getattr(definition, f"{header.method}_args"))

    def _new_call(self, header: codec.Header, arguments: Any) -> Call:
        if self._in_flight >= self._limits.calls_in_flight:
            raise ProtocolError(
                f"{self._in_flight} calls are unanswered on this connection; no more are allowed"
            )
        self._handshaken = self._handshaken or self._guard.trusted
        self._in_flight += 1
        result_type = getattr(self._service.definition, f"{header.method}_result")
        return Call(header, arguments.request, result_type, self, self._tally.methods[header.method])

    def _dispatch(self, call: "Call | _Refusal") -> None:
        if isinstance(call, _Refusal):
            call.call.fail(call.error)
            return
        try:
            if self._server.stopping:
                raise UnavailableError("the service is shutting down")
            self._guard.permit(call)
            if call.method == AUTHENTICATE:
                self._authenticate(call)
            else:
                self._service.handle(call)
        except EvenpaceError as error:
            call.fail(error)
        except Exception:  # a bug in one call must not end the service for all
            log.exception(
                "%s from %s failed", call.method, self.name, extra=self.log_fields | call.log_fields
            )
            call.crash("internal error; the service's log has the details")

    def _authenticate(self, call: Call) -> None:
        job = self._guard.authenticate(call.request)
        if self._guard.trusted:
            self._server.trust(self)
            self._handshaken = True
        call.reply(codec.struct_type(self._service.definition, "authenticate_result", 0)(job=job))

    # -- writing

    def answer(self, parts: list[bytes | memoryview], *, is_whole: bool = True) -> None:
        """Send one answer, or a part of one, unless the connection has ended."""
        self._in_flight -= is_whole
        self.active_at = time.monotonic()
        if not self.transport.is_closing():
            count = sum(map(len, parts))
            self._tally.sent += count
            self._given += count
            if len(parts) == 1:
                self.transport.write(parts[0])
            else:
                self.transport.writelines(parts)

    def abort(self) -> None:
        """End the connection at once."""
        self.transport.abort()

    def is_sending(self) -> bool:
        """Return whether bytes of an answer have not left this process yet."""
        return not self.transport.is_closing() and self.transport.get_write_buffer_size() > 0

    def _refuse(self, text: str, kind: int = TApplicationException.PROTOCOL_ERROR) -> None:
        """Send the reason, then close; bytes that arrive meanwhile are dropped, so that it is delivered."""
        self._tally.refused += 1
        self._server.warn(f"refused {self.name}: {text}", self.log_fields)
        self._refused, self._filled, self._frame_since = True, 0, None
        if self._sink is not None:
            self._sink.abort()
            self._sink, self._sink_left = None, 0
        header = codec.Header("", TMessageType.EXCEPTION, 0)
        self.transport.write(codec.application_exception(header, kind, text))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._server.linger(self, _LINGER_SECONDS)

    def check_deadlines(self, now: float) -> None:
        """Close the connection if its peer has missed a deadline.

        Args:
            now: Seconds, from `time.monotonic`.
        """
        limits = self._limits
        if self._refused or self.transport.is_closing():
            return
        unsent = self.transport.get_write_buffer_size()
        if not unsent:
            self._blocked_since = None
        elif self._blocked_since is None or self._given - unsent > self._taken:
            self._blocked_since = now  # it may be slow, but is alive, also where more is given than it takes
        self._taken = max(self._taken, self._given - unsent)
        if self._blocked_since is not None and now - self._blocked_since > limits.request_timeout:
            self._server.warn(
                f"{self.name} did not take its answer within {limits.request_timeout:g} s", self.log_fields
            )
            self._tally.cut_off += 1
            self.transport.abort()
        elif self._frame_since is not None and now - self._frame_since > limits.request_timeout:
            self._refuse(f"the message was not complete within {limits.request_timeout:g} s", codec.TIMEOUT)
        elif not self._handshaken and now - self._connected_at > limits.handshake_timeout:
            self._refuse(f"no call came within {limits.handshake_timeout:g} s of connecting", codec.TIMEOUT)
        elif not self._in_flight and now - self.active_at > limits.idle_timeout:
            self._refuse(f"no call came for {limits.idle_timeout:g} s", codec.TIMEOUT)


@dataclass(frozen=True)
class _Refusal:
    call: Call
    error: EvenpaceError
