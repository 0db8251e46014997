"""A blocking Thrift client for one peer, with deadlines, reconnection and checked answers.

After any error the connection is closed, since it could still deliver the answer to an earlier call.
"""

import contextlib
import math
import random
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from thriftpy2.thrift import TApplicationException, TMessageType

from idl.errors import (
    ConnectionLostError,
    DeadlineExceededError,
    EvenpaceError,
    InvalidRequestError,
    NotMemberError,
    NotYetError,
    ProtocolError,
    UnauthorisedError,
    UnavailableError,
)
from rpc import codec
from rpc.address import Address
from rpc.credentials import Credentials
from rpc.dial import connection_error, dial, is_only_tls, shut_down
from rpc.field_log import FieldLog
from rpc.guard import AUTHENTICATE
from rpc.places import Places, Where
from rpc.tokens import Token

log = FieldLog(__name__)

_PREFIX = 4096  # bytes; the envelope of an answer with a bulk field fits
_FIRST_BACKOFF, _LONGEST_BACKOFF = 0.05, 2.0  # seconds
_JITTER = random.SystemRandom()  # a worker's script draws from the module's own generator
_ATTEMPT_SECONDS = 5.0  # for one attempt to connect
_SILENT_SECONDS = 2.0  # of attempts, before a line of log says which service is waited for
_WAIT_SECONDS = 2.0  # for which a service may hold back an answer before it asks for a repetition
_LOOK_SECONDS = 1.0  # of waiting, after which the file of places is looked at
_UNSENT_BYTES = 2**18  # of a growing bulk field that the kernel takes at most before it has sent them
_MAX_ANSWER = 64 * 2**20  # bytes; the longest answer without a bulk field


class GrowingBulk(Protocol):
    """A bulk field that is sent while its bytes are being made."""

    nbytes: int  # its length

    def after(self, sent: int) -> memoryview:
        """Wait for bytes after the first `sent`, and return some of them.

        Raises:
            EvenpaceError: There will be no more.
        """
        ...

    def note_sent(self, sent: int) -> None:
        """Note that the first bytes were written to the connection."""
        ...

    def whole(self) -> memoryview:
        """Wait for all bytes, and return them; raise as `after` does."""
        ...


class Client:
    """A client of one service.

    Args:
        definition: The Thrift service.
        where: The address that it listens on, or the places where it may be; each attempt to connect is at
            one of those that there are then, in turn.
        name: The service's name in error messages.
        connect_timeout: Seconds in which a connection must be made, over all attempts.
        call_timeout: Seconds in which a call must be answered, reconnections included, unless the call has a
            time-out of its own.
        credentials: Certificates for TLS, and the token that each connection begins with; None for neither.
        silence: Seconds for which the service may send nothing, and accept none of the bytes sent, before the
            connection counts as broken; a service answers every few seconds while a call waits for others.
            Where a file of places has other addresses meanwhile, it is broken off within two seconds.
        log: A logger whose fields all log lines get.

    Raises:
        InvalidRequestError: A file of the credentials cannot be used, or the token would go in the clear.
    """

    def __init__(
        self,
        definition: type,
        where: Where,
        name: str,
        *,
        connect_timeout: float = 30.0,
        call_timeout: float = 60.0,
        credentials: Credentials | None = None,
        silence: float = math.inf,
        log: FieldLog = log,
    ) -> None:
        self._definition = definition
        self._places = Places.of(where)
        self._address = self._places.addresses[0] if self._places.addresses else None  # dialled last
        self._turn = 0  # the place, by its number, that is dialled next
        self.name = name
        self._connect_timeout = connect_timeout
        self._call_timeout = call_timeout
        self._log = log.of(__name__)
        self._credentials = credentials or Credentials()
        self._credentials.check_target(self._places)
        self._contexts = self._credentials.contexts(server=False) if self._credentials.tls else None
        self._silence = silence
        self.connections = 0  # number of connections made so far
        self.held = 0.0  # seconds for which the service held calls back that it then answered with `NotYet`
        self.awaits = ""  # what the present call waits for, as the service said last; empty if it has not
        self._sent_at = 0.0
        self._socket: socket.socket | None = None
        self._abandoned: EvenpaceError | None = None
        self._dialling: socket.socket | None = None  # not connected yet
        self._woken = threading.Event()  # whoever pauses between attempts
        self._sequence_id = 0
        self._method = ""

    def call(
        self,
        method: str,
        request: Any,
        *,
        bulk: memoryview | None = None,
        into: memoryview | None = None,
        timeout: float | None = None,
        unavailable_timeout: float = math.inf,
        wanted: Callable[[], bool] = lambda: True,
        on_wait: Callable[[str, float], None] = lambda awaits, seconds: None,
    ) -> Any:
        """Call a method, reconnecting as often as needed.

        Each call may be repeated: the services recognise a repetition by its identity and iteration.

        Args:
            request: Its first argument.
            bulk: Its second argument, if it has one.
            into: The memory that the answer's bulk field is written to; must have its length.
            timeout: Seconds until the answer must have arrived.
            unavailable_timeout: Seconds for which the service may answer that it is unavailable.
            wanted: Returns whether the answer is still wanted; called before each attempt. See `interrupt`.
            on_wait: Called every few seconds while the service holds the answer back, with what it says that
                the call waits for, and the seconds so far.

        Returns:
            The result struct.

        Raises:
            InvalidRequestError, NotMemberError, UnavailableError, UnauthorisedError: As declared in the IDL.
            UnauthorisedError: One side does not accept the other's certificate.
            ConnectionLostError: The service cannot be reached.
            DeadlineExceededError: The answer did not arrive in time.
            ProtocolError: The answer is invalid.
        """
        begun = time.monotonic()
        deadline = begun + (self._call_timeout if timeout is None else timeout)
        backoff = _FIRST_BACKOFF
        self.awaits = ""
        while True:
            self.connect(deadline, wanted)
            try:
                self.send(method, request, bulk=bulk, deadline=deadline, wanted=wanted)
                return self.receive(into=into, deadline=deadline)
            except NotYetError as error:
                on_wait(str(error), time.monotonic() - begun)
                if self._new_places() is not None:  # another process is the service now
                    self.close()
                continue
            except (ConnectionLostError, UnavailableError) as error:
                self._raise_unless(wanted)
                until = deadline
                if isinstance(error, UnavailableError):
                    until = min(deadline, begun + unavailable_timeout)
                if time.monotonic() + backoff >= until:
                    raise
                self._log.warning("%s: %s; trying again", method, error)
            self._pause(backoff)
            backoff = min(2 * backoff, _LONGEST_BACKOFF)

    def call_as_nobody(self, method: str, request: Any, unavailable_timeout: float = math.inf) -> bool:
        """Call a method about a job that does not exist: its error shows that the service runs.

        Returns:
            Whether the service lets this side in: False where it refuses its token, or asks for one.

        Raises:
            UnauthorisedError: One side does not accept the other's certificate.
            EvenpaceError: The service does not answer, or as another kind of service.
        """
        try:
            self.call(method, request, unavailable_timeout=unavailable_timeout)
        except (InvalidRequestError, NotMemberError):
            return True
        except UnauthorisedError:
            if not self.is_connected:  # the error is from TLS, not from the service
                raise
            return False
        return True

    def call_growing(
        self,
        method: str,
        request: Any,
        bulk: GrowingBulk,
        *,
        unavailable_timeout: float = math.inf,
        wanted: Callable[[], bool] = lambda: True,
    ) -> Any:
        """Call a method with a bulk field that is sent while it is made.

        If the connection breaks, the field is sent again once it is whole. The other arguments, the result
        and errors are those of `call`; deadlines count from when the field is whole.
        """
        try:
            self.send(method, request, bulk=bulk, deadline=math.inf, wanted=wanted)
            return self.receive(deadline=time.monotonic() + self._call_timeout)
        except (ConnectionLostError, UnavailableError) as error:
            self._raise_unless(wanted)
            whole = bulk.whole()
            self._log.warning("%s: %s; trying again", method, error)
        return self.call(method, request, bulk=whole, unavailable_timeout=unavailable_timeout, wanted=wanted)

    def call_once(
        self, method: str, request: Any, into: memoryview, wanted: Callable[[], bool] = lambda: True
    ) -> Any:
        """Call a method whose answer's bulk field comes as it is made; the call is not repeated if it fails.

        The arguments, the result and errors are those of `call`; there is no deadline but for connecting.
        """
        while True:
            self._close_if_readable()
            self.connect(time.monotonic() + _ATTEMPT_SECONDS, wanted)
            try:
                self._send(method, request, None, math.inf)
                return self.receive(into=into, deadline=math.inf)
            except NotYetError:
                continue

    def send(
        self,
        method: str,
        request: Any,
        *,
        bulk: memoryview | GrowingBulk | None = None,
        deadline: float,
        wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        """Send a call, to be followed by `receive`; connect first if necessary."""
        self._close_if_readable()
        self.connect(deadline, wanted)
        self._send(method, request, bulk, deadline)

    def _send(
        self, method: str, request: Any, bulk: memoryview | GrowingBulk | None, deadline: float
    ) -> None:
        self._sequence_id = (self._sequence_id + 1) & 0x7FFFFFFF
        self._method = method
        if self._silence < math.inf and hasattr(request, "wait"):
            request.wait = _WAIT_SECONDS
        arguments = getattr(self._definition, f"{method}_args")(request)
        if bulk is not None:
            codec.set_bulk_field(arguments, b"")
        header = codec.Header(method, TMessageType.CALL, self._sequence_id)
        message = codec.encode(header, arguments)
        try:
            if bulk is None:
                self._write(codec.frame(message), deadline)
            else:
                head, tail = codec.frame_around_bulk(message, 1, bulk.nbytes)
                self._write(head, deadline)
                if isinstance(bulk, memoryview):
                    self._write(bulk, deadline)
                else:
                    self._write_growing(bulk, deadline)
                self._write(tail, deadline)
            self._sent_at = time.monotonic()
        except TimeoutError:
            raise self._timeout_error("take", deadline) from None
        except OSError as error:
            reason = self._closing_error() or connection_error(self._peer(), method, error)
            self.close()
            if isinstance(reason, ProtocolError):
                reason = ConnectionLostError(f"{self._peer()} broke off {method}: {reason}")
            raise reason from error

    def receive(self, *, into: memoryview | None = None, deadline: float) -> Any:
        """Receive the result of the call that was sent last."""
        try:
            return self._receive(into, deadline)
        except TimeoutError:
            raise self._timeout_error("answer", deadline) from None
        except NotYetError as error:
            self.awaits = str(error)
            self.held += time.monotonic() - self._sent_at
            raise
        except ProtocolError:
            self.close()
            raise
        except EvenpaceError:
            raise
        except OSError as error:
            self.close()
            raise connection_error(self._peer(), self._method, error) from error

    def connect(
        self, deadline: float | None = None, wanted: Callable[[], bool] = lambda: True
    ) -> socket.socket:
        """Return the connection; make one if there is none, with exponential backoff between attempts.

        Raises:
            ConnectionLostError: The service cannot be reached, or the connection is not wanted any more.
        """
        self._raise_unless(wanted)
        if self._socket is not None:
            return self._socket
        began = time.monotonic()
        warned = False
        until = began + self._connect_timeout
        if deadline is not None:
            until = min(until, deadline)
        backoff = _FIRST_BACKOFF
        while True:
            try:
                self._socket = self._dial(until)
                self._raise_unless(wanted)
                self._authenticate(until)
                self.connections += 1
                return self._socket
            except (OSError, UnavailableError, ConnectionLostError) as error:
                self.close()
                self._raise_unless(wanted)
                self._turn += 1
                if isinstance(error, ssl.SSLError):
                    failure = connection_error(self._peer(), "the TLS handshake", error)
                    if not isinstance(failure, ConnectionLostError):
                        raise failure from error
                now = time.monotonic()
                if now + backoff >= until:
                    raise ConnectionLostError(
                        f"cannot reach {self._peer()} ({error}); is it running there?"
                    ) from error
                # Towards the end, the error is near.
                if not warned and now - began >= _SILENT_SECONDS < (until - now) / 2:
                    warned = True
                    self._log.warning(
                        "cannot reach %s yet (%s); trying for %.0f s more", self._peer(), error, until - now
                    )
                self._pause(backoff)
                self._raise_unless(wanted)
                backoff = min(2 * backoff, _LONGEST_BACKOFF)
            except EvenpaceError:
                self.close()
                raise

    def _dial(self, until: float) -> socket.socket:
        """Connect to the place whose turn it is, of those that there are now."""
        places = self._places.now()
        self._address = address = places[self._turn % len(places)]
        self._credentials.check_target(address)
        left = (until - time.monotonic()) / (len(places) - self._turn % len(places))
        try:
            seconds = max(0.01, min(_ATTEMPT_SECONDS, left))
            connection = dial(address, seconds, self._contexts, self._note_dialling)
        finally:
            self._dialling = None
        if not self._credentials.tls:
            try:  # the name may have been resolved to another machine than a moment ago
                self._credentials.check_target(Address(*connection.getpeername()[:2]))
            except (OSError, EvenpaceError):
                connection.close()
                raise
        return connection

    @property
    def where(self) -> str:
        """Return the place that was dialled last, in words; the places, where none was."""
        if self._address is None:
            return str(self._places)
        return f"{self._address}, by {self._places}" if self._places.file else str(self._address)

    @property
    def is_connected(self) -> bool:
        """Return whether there is a connection."""
        return self._socket is not None

    @property
    def local_host(self) -> str:
        """Return this machine's address on the way to the service: of the present connection's near end.

        Raises:
            ConnectionLostError: There is no connection.
        """
        if self._socket is None:
            raise ConnectionLostError(f"there is no connection to {self._peer()}")
        return str(self._socket.getsockname()[0])

    def close(self) -> None:
        """Close the connection; the next call makes a new one.

        A call of another thread that is in progress fails, or is made again.
        """
        connection, self._socket = self._socket, None
        if connection is not None:
            connection.close()

    def twin(self) -> "Client":
        """Make another client of the same service, with a connection of its own."""
        return Client(
            self._definition,
            self._places,
            self.name,
            connect_timeout=self._connect_timeout,
            call_timeout=self._call_timeout,
            credentials=self._credentials,
            silence=self._silence,
            log=self._log,
        )

    def set_connect_timeout(self, seconds: float) -> None:
        """Set the seconds in which a connection must be made from now on, over all attempts."""
        self._connect_timeout = seconds

    def abandon(self, error: EvenpaceError) -> None:
        """Make the call in progress and all later ones fail with `error`; may be called from any thread."""
        self._abandoned = error
        self.interrupt()

    def interrupt(self) -> None:
        """Shut the connection down; a call in progress is repeated if still wanted. From any thread.

        An attempt to connect, and the pause before the next, are over at once; while a host's name is
        resolved, or at the very moment at which a connection is begun, this has no effect.
        """
        self._woken.set()
        for connection in (self._socket, self._dialling):
            if connection is not None:
                with contextlib.suppress(OSError):
                    shut_down(connection)

    def _note_dialling(self, connection: socket.socket) -> None:
        self._dialling = connection

    def _pause(self, backoff: float) -> None:
        """Wait before another attempt, unless there is an interruption."""
        self._woken.wait(backoff * _JITTER.uniform(0.5, 1.0))
        self._woken.clear()

    def _raise_unless(self, wanted: Callable[[], bool]) -> None:
        """Raise an error if this client was abandoned, or the call is not wanted any more."""
        if self._abandoned is not None:
            raise self._abandoned
        if not wanted():
            raise ConnectionLostError(f"a call of {self._peer()} was given up")

    def _authenticate(self, deadline: float) -> None:
        """Send the token, if there is one, and wait for the answer."""
        if self._credentials.token is None and self._credentials.token_text is None:
            return
        text = self._credentials.read_token()
        request_type = codec.struct_type(self._definition, f"{AUTHENTICATE}_args", 1)
        self._send(AUTHENTICATE, request_type(job=Token.parse(text).name, token=text), None, deadline)
        self.receive(deadline=deadline)

    def _close_if_readable(self) -> None:
        """Close a connection that has something to read before a call: its end, or a late answer."""
        if self._socket is not None:
            poll = select.poll()
            poll.register(self._socket, select.POLLIN)
            if poll.poll(0) and not is_only_tls(self._socket):
                self.close()

    def _receive(self, into: memoryview | None, deadline: float) -> Any:
        word = bytearray(4)
        self._read(memoryview(word), deadline, _WAIT_SECONDS)
        (length,) = codec.LENGTH.unpack(word)
        if length <= 0 or (into is None and length > _MAX_ANSWER):
            raise ProtocolError(f"{self._peer()} sent a frame of {length} bytes; is it evenpace's?")
        prefix = bytearray(length if into is None else min(length, _PREFIX))
        self._read(memoryview(prefix), deadline)
        data = bytes(prefix)
        header, bulk = codec.scan(data, length)
        if bulk is not None:
            assert into is not None
            self._fill(into, bulk.length, memoryview(data)[bulk.position + 4 :], deadline)
            self._read(memoryview(bytearray(length - bulk.position - 4 - bulk.length)), deadline)
            data = codec.without_bulk(data, bulk)
        if header.type == TMessageType.EXCEPTION:
            exception = codec.decode(data, TApplicationException)
            # The network, or one of the two processes, was slow: try again.
            if exception.type == codec.TIMEOUT:
                raise ConnectionResetError(exception.message)
            raise ProtocolError(f"{self._peer()}: {exception.message}")
        if header[::2] != (self._method, self._sequence_id) or header.type != TMessageType.REPLY:
            raise ProtocolError(
                f"{self._peer()} answered {header.method} {header.sequence_id}, "
                f"not {self._method} {self._sequence_id}"
            )
        result = codec.decode(data, getattr(self._definition, f"{self._method}_result"))
        codec.raise_declared(result)
        if result.success is None:
            raise ProtocolError(f"{self._peer()} gave no result for {self._method}")
        if into is not None and bulk is None:
            payload = memoryview(codec.bulk_field(result.success) or b"")
            self._fill(into, payload.nbytes, payload, deadline)
        return result.success

    def _fill(self, into: memoryview, length: int, at_hand: memoryview, deadline: float) -> None:
        """Fill memory with a bulk field of this length, whose first bytes are at hand."""
        if length != into.nbytes:
            raise ProtocolError(f"{self._peer()} sent {length} bytes of {self._method}, not {into.nbytes}")
        taken = min(length, at_hand.nbytes)
        into[:taken] = at_hand[:taken]
        self._read(into[taken:], deadline)

    def _write(self, data: bytes | memoryview, deadline: float) -> None:
        left = memoryview(data).cast("B")
        while left.nbytes:
            left = left[self._wait(self._connection().send, left, min(_left(deadline), self._silence)) :]

    def _write_growing(self, bulk: GrowingBulk, deadline: float) -> None:
        self._connection().setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
        sent = 0
        while sent < bulk.nbytes:
            try:
                part = bulk.after(sent)
            except EvenpaceError:
                self.close()  # in the middle of a message
                raise
            self._write(part, deadline)
            sent += part.nbytes
            bulk.note_sent(sent)

    def _read(self, buffer: memoryview, deadline: float, wait: float = 0.0) -> None:
        """Fill a buffer; the service may wait `wait` seconds before it sends the first byte."""
        while buffer.nbytes:
            seconds = min(_left(deadline), wait + self._silence)
            count = self._wait(self._connection().recv_into, buffer, seconds)
            if not count:
                raise ConnectionResetError("it closed the connection")
            buffer = buffer[count:]

    def _wait(self, step: Callable[[memoryview], int], data: memoryview, seconds: float) -> int:
        """Send or receive a part of `data`, and return its bytes; wait for that at most `seconds`.

        Raises:
            ConnectionLostError: Meanwhile a file of places has other addresses.
            OSError: The connection broke; `TimeoutError` after `seconds`.
        """
        connection = self._connection()
        if self._places.file is None:
            connection.settimeout(None if seconds == math.inf else seconds)
            return step(data)
        until = time.monotonic() + seconds
        while True:
            connection.settimeout(min(seconds, _LOOK_SECONDS))
            try:
                return step(data)
            except TimeoutError:
                seconds = until - time.monotonic()
                if seconds <= 0:
                    raise
            if (places := self._new_places()) is not None:
                self.close()
                raise ConnectionLostError(
                    f"{self._peer()} was silent in {self._method}, and is at {places} now"
                )

    def _connection(self) -> socket.socket:
        """Return the connection of the call in progress.

        Raises:
            ConnectionResetError: Another thread has closed it.
        """
        connection = self._socket
        if connection is None:
            raise ConnectionResetError("it was closed meanwhile")
        return connection

    def _new_places(self) -> str | None:
        """Return the addresses in the file of places, in words, unless one is that dialled last."""
        if self._places.file is None:
            return None
        try:
            places = self._places.now()
        except UnavailableError:  # nothing is known that would be better than the present connection
            return None
        return None if self._address in places else ",".join(map(str, places))

    def _timeout_error(self, what: str, deadline: float) -> EvenpaceError:
        """Close the connection, and return the error of a call whose deadline or silence is over."""
        self.close()
        self._turn += 1  # it may be frozen, and have been started again at another of its places
        if time.monotonic() >= deadline:
            awaits = f": {self.awaits}" if self.awaits else ""
            return DeadlineExceededError(
                f"{self._peer()} did not {what} {self._method} within its deadline{awaits}"
            )
        return ConnectionLostError(f"{self._peer()} did not {what} {self._method} for {self._silence:g} s")

    def _closing_error(self) -> EvenpaceError | None:
        """Return the peer's reason for closing the connection while a call was sent, if it sent one."""
        try:
            self._receive(None, time.monotonic() + 1.0)
        except EvenpaceError as error:
            return error
        except ssl.SSLError as error:
            return connection_error(self._peer(), self._method, error)
        except OSError:
            pass
        return None

    def _peer(self) -> str:
        return f"the {self.name} at {self.where}"


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
