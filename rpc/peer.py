"""One connection of a server: frames in, calls out to the service, answers back; limits and deadlines.

Bulk fields go straight from the socket into the buffers of a `Sink`.
"""

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from thriftpy2.thrift import TApplicationException, TMessageType

from idl.errors import EvenpaceError, ProtocolError, UnavailableError
from rpc import codec
from rpc.address import Address
from rpc.guard import AUTHENTICATE, Guard
from rpc.service import Call, Discard, Sink
from rpc.tokens import ALL_JOBS

if TYPE_CHECKING:
    from rpc.server import Server


log = logging.getLogger(__name__)

_SCRATCH = 4096  # bytes; an ordinary message fits, and so does the envelope of a large one
_LINGER_SECONDS = 1.0
_TURN_SECONDS = 0.01  # of CPU time, for one connection's calls before it is others' turn


class Peer(asyncio.BufferedProtocol):
    """One connection. Frames in, calls out to the service; answers back.

    Attributes:
        active_at: When bytes came last or an answer went out, in the monotonic clock's seconds.
        name: The peer's address.
    """

    def __init__(self, server: "Server") -> None:
        self._server = server
        self._service = server.service
        self._limits = server.limits
        self._tally = server.tally
        self._scratch = memoryview(bytearray(_SCRATCH))
        self._filled = 0  # bytes of the scratch that are in use
        self._sink: Sink | None = None
        self._sink_left = 0  # bytes of the bulk field still to come
        self._tail_left = 0  # bytes of the frame after the bulk field still to come
        self._call: Call | _Refusal | None = None  # what to do once the frame is complete
        self._refused = False
        self._in_flight = 0
        self._connected_at = self.active_at = time.monotonic()
        self._frame_since: float | None = None
        self._blocked_since: float | None = None
        self._unsent = 0  # bytes of answers, when deadlines were last looked at
        self._paused = False  # nothing more is read until the peer has taken its answers
        self._yielding = False  # nothing more is read until others have had their turn
        self._handshaken = False
        self._guard = Guard(
            self._limits, server.token_keys, self._connected_at, secure=server.contexts is None
        )
        self.name = "?"

    @property
    def log_fields(self) -> dict[str, str]:
        """What lines of log about this connection say beside their message."""
        job = self._guard.job
        return {"peer": self.name} if job in (None, ALL_JOBS) else {"peer": self.name, "job": str(job)}

    # -- the event loop calls these

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A peer has connected."""
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
        """TLS has shown that the peer has a certificate of ours."""
        self._guard.secured()
        if self._guard.trusted:
            self._server.trust(self)

    def tls_failed(self, text: str) -> None:
        """TLS has shown that it has none, and has told it so."""
        self._refuse(text)

    def connection_lost(self, error: Exception | None) -> None:
        """The peer has gone, or we have closed."""
        if self._sink is not None:
            self._sink.abort()
            self._sink = None
        self._replace_scratch(0)
        self._server.forget(self)
        self._service.disconnected(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes from the socket go."""
        if self._refused:
            return self._scratch
        if self._sink_left:
            assert self._sink is not None
            return self._sink.get_buffer()
        if self._tail_left:
            return self._scratch[: self._tail_left]
        return self._scratch[self._filled :]

    def buffer_updated(self, count: int) -> None:
        """`count` bytes have arrived."""
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
        except Exception as error:  # noqa: BLE001 - what one peer meets must not leave it, or others, waiting
            self._refuse_for(error)

    def pause_writing(self) -> None:
        """The peer does not take its answers: let it ask for nothing more until it does."""
        self._paused = True
        if not self.transport.is_closing():
            self.transport.pause_reading()

    def resume_writing(self) -> None:
        """It has taken them."""
        self._paused = False
        asyncio.get_running_loop().call_soon(self._go_on)  # this may be called while frames are taken

    # -- reading

    def _yield(self) -> None:
        """Let others have their turn: what one peer has sent at once may take long to answer."""
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
        """End the connection, since what came cannot be taken."""
        if isinstance(error, ProtocolError):
            self._refuse(str(error))
        else:
            log.error("what %s sent could not be taken", self.name, exc_info=error, extra=self.log_fields)
            self._refuse("internal error; the service's log has the details")

    def _take_frames(self, now: float) -> None:
        scratch, position, filled = self._scratch, 0, self._filled
        began: float | None = None  # of CPU time: a machine that is busy otherwise must not shorten turns
        while filled - position >= 4 and not (self._refused or self._paused or self._yielding):
            (length,) = codec.LENGTH.unpack_from(scratch, position)
            end = position + 4 + length
            if length <= 0 or length > self._guard.frame_bytes + self._guard.bulk_bytes:
                raise self._too_long(length)
            if end > filled:
                if filled - position >= 8:  # say at once that another protocol is spoken
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
            self._frame_since = None  # it is we who do not read on
        elif self._filled == len(self._scratch):
            self._grow_or_stream()
        elif len(self._scratch) > _SCRATCH and self._filled < _SCRATCH // 2:
            self._replace_scratch(_SCRATCH)  # a long message must not be paid for until the connection ends

    def _grow_or_stream(self) -> None:
        """A frame is longer than the scratch: find its bulk field, or make room for all of it."""
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
        # No more than twice what has come: a peer that only says that it will send much gets no memory.
        self._replace_scratch(min(length, self._guard.frame_bytes, 2 * self._filled) + 4)

    def _replace_scratch(self, size: int) -> None:
        """Give the scratch another size, with what is in it."""
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
        """Open the call's sink; a refusal waits until the field has been read and dropped."""
        try:
            self._guard.permit(call)
            call.sink = self._sink = self._service.open_sink(call, length)
        except EvenpaceError as error:
            self._sink = Discard(length)
            return _Refusal(call, error)
        return call

    def _decode(self, header: codec.Header, data: bytes) -> Any | None:
        """The call's arguments; None where the call has been answered with an error already."""
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
        except Exception:  # a bug that one caller meets must not end the service for all
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

    def answer(self, parts: list[bytes | memoryview]) -> None:
        """Send one answer. A peer that has gone needs none."""
        self._in_flight -= 1
        self.active_at = time.monotonic()
        if not self.transport.is_closing():
            if len(parts) == 1:
                self._tally.sent += len(parts[0])
                self.transport.write(parts[0])
            else:
                self._tally.sent += sum(map(len, parts))
                self.transport.writelines(parts)

    def is_sending(self) -> bool:
        """Whether bytes of an answer are still on their way out of this process."""
        return not self.transport.is_closing() and self.transport.get_write_buffer_size() > 0

    def _refuse(self, text: str, kind: int = TApplicationException.PROTOCOL_ERROR) -> None:
        """Say why, then close; what still arrives is dropped, so that the reason gets through."""
        self._tally.refused += 1
        self._server.complain(f"refused {self.name}: {text}", self.log_fields)
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
        """Close the connection if its peer has let a deadline pass."""
        limits = self._limits
        if self._refused or self.transport.is_closing():
            return
        unsent = self.transport.get_write_buffer_size()
        if not unsent:
            self._blocked_since = None
        elif self._blocked_since is None or unsent < self._unsent:
            self._blocked_since = now  # it may be slow, but is alive
        self._unsent = unsent
        if self._blocked_since is not None and now - self._blocked_since > limits.request_timeout:
            self._server.complain(
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
