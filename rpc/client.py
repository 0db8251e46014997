"""A blocking Thrift client for one peer, with deadlines, reconnection and checked answers.

After any error the connection is closed: what is left in it could be the answer to an earlier call.
"""

import logging
import random
import select
import socket
import time
from typing import Any

from thriftpy2.thrift import TApplicationException, TMessageType

from rpc import codec
from rpc.address import Address
from rpc.errors import (
    ConnectionLostError,
    DeadlineExceededError,
    EvenpaceError,
    ProtocolError,
    UnavailableError,
)

log = logging.getLogger(__name__)

_PREFIX = 4096  # bytes; the envelope of an answer with a bulk field fits
_FIRST_BACKOFF, _LONGEST_BACKOFF = 0.05, 2.0  # seconds
_ATTEMPT_SECONDS = 5.0  # for one attempt to connect
_MAX_ANSWER = 64 * 2**20  # bytes; the longest answer without a bulk field


class Client:
    """Calls one service.

    Args:
        definition: The Thrift service.
        address: Where it listens.
        name: What it is, for error messages.
        connect_timeout: Seconds in which a connection must come about, over all attempts.
        call_timeout: Seconds in which a call must be answered, reconnections included, unless the
            call says otherwise.
    """

    def __init__(
        self,
        definition: type,
        address: Address,
        name: str,
        *,
        connect_timeout: float = 30.0,
        call_timeout: float = 60.0,
    ) -> None:
        self._definition = definition
        self.address = address
        self.name = name
        self._connect_timeout = connect_timeout
        self._call_timeout = call_timeout
        self._socket: socket.socket | None = None
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
    ) -> Any:
        """Call a method, reconnecting as often as needed.

        Every call of ours may be repeated: the services know a repetition by its identity and iteration.

        Args:
            method: The method's name.
            request: Its first argument.
            bulk: Its second argument, if it has one.
            into: Where the bulk field of the answer goes; must have its length.
            timeout: Seconds until the answer must be there.

        Returns:
            The result struct.

        Raises:
            InvalidRequestError, NotMemberError, UnavailableError: As declared in the IDL.
            ConnectionLostError: The service cannot be reached.
            DeadlineExceededError: The answer did not come in time.
            ProtocolError: The answer is not one.
        """
        deadline = time.monotonic() + (self._call_timeout if timeout is None else timeout)
        backoff = _FIRST_BACKOFF
        while True:
            self.connect(deadline)
            try:
                self.send(method, request, bulk=bulk, deadline=deadline)
                return self.receive(into=into, deadline=deadline)
            except (ConnectionLostError, UnavailableError) as error:
                if time.monotonic() + backoff >= deadline:
                    raise
                log.warning("%s: %s; trying again", method, error)
            time.sleep(backoff * random.uniform(0.5, 1.0))
            backoff = min(2 * backoff, _LONGEST_BACKOFF)

    def send(self, method: str, request: Any, *, bulk: memoryview | None = None, deadline: float) -> None:
        """Send a call, to be followed by `receive`. Connects first if need be."""
        self._close_if_spoken()
        connection = self.connect(deadline)
        self._sequence_id = (self._sequence_id + 1) & 0x7FFFFFFF
        self._method = method
        arguments = getattr(self._definition, f"{method}_args")(request)
        if bulk is not None:
            codec.set_bulk_field(arguments, b"")
        header = codec.Header(method, TMessageType.CALL, self._sequence_id)
        message = codec.encode(header, arguments)
        try:
            connection.settimeout(_left(deadline))
            if bulk is None:
                connection.sendall(codec.frame(message))
            else:
                head, tail = codec.frame_around_bulk(message, 1, bulk.nbytes)
                connection.sendall(head)
                connection.sendall(bulk)
                connection.sendall(tail)
        except TimeoutError:
            self.close()
            raise DeadlineExceededError(f"{self._peer()} did not take {method} within its deadline") from None
        except OSError as error:
            reason = self._last_words()
            self.close()
            raise ConnectionLostError(f"{self._peer()} broke off {method}: {reason or error}") from error

    def receive(self, *, into: memoryview | None = None, deadline: float) -> Any:
        """The result of the call that was sent last."""
        try:
            return self._receive(into, deadline)
        except TimeoutError:
            self.close()
            raise DeadlineExceededError(
                f"{self._peer()} did not answer {self._method} within its deadline"
            ) from None
        except ProtocolError:
            self.close()
            raise
        except EvenpaceError:
            raise
        except OSError as error:
            self.close()
            raise ConnectionLostError(f"{self._peer()} broke off {self._method}: {error}") from error

    def connect(self, deadline: float | None = None) -> socket.socket:
        """The connection, made anew if there is none, with exponential backoff between attempts."""
        if self._socket is not None:
            return self._socket
        until = time.monotonic() + self._connect_timeout
        if deadline is not None:
            until = min(until, deadline)
        backoff = _FIRST_BACKOFF
        while True:
            try:
                self._socket = socket.create_connection(
                    self.address, timeout=max(0.01, min(_ATTEMPT_SECONDS, until - time.monotonic()))
                )
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                return self._socket
            except OSError as error:
                if time.monotonic() + backoff >= until:
                    raise ConnectionLostError(
                        f"cannot reach {self._peer()} ({error}); is it running there?"
                    ) from error
                time.sleep(backoff * random.uniform(0.5, 1.0))
                backoff = min(2 * backoff, _LONGEST_BACKOFF)

    def close(self) -> None:
        """Close the connection; the next call makes a new one."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _close_if_spoken(self) -> None:
        """Close a connection with something to read before a call: its end, or an answer too late."""
        if self._socket is not None:
            poll = select.poll()
            poll.register(self._socket, select.POLLIN)
            if poll.poll(0):
                self.close()

    def _receive(self, into: memoryview | None, deadline: float) -> Any:
        word = bytearray(4)
        self._read(memoryview(word), deadline)
        (length,) = codec.LENGTH.unpack(word)
        if length <= 0 or (into is None and length > _MAX_ANSWER):
            raise ProtocolError(f"{self._peer()} sent a frame of {length} bytes; is it evenpace's?")
        prefix = bytearray(length if into is None else min(length, _PREFIX))
        self._read(memoryview(prefix), deadline)
        data = bytes(prefix)
        header, bulk = codec.scan(data, length)
        if bulk is not None:
            assert into is not None
            if bulk.length != into.nbytes:
                raise ProtocolError(
                    f"{self._peer()} sent {bulk.length} bytes of {self._method}, not {into.nbytes}"
                )
            arrived = len(data) - bulk.position - 4
            into[:arrived] = data[bulk.position + 4 :]
            self._read(into[arrived:], deadline)
            self._read(memoryview(bytearray(length - bulk.position - 4 - bulk.length)), deadline)
            data = codec.without_bulk(data, bulk)
        if header.type == TMessageType.EXCEPTION:
            exception = codec.decode(data, TApplicationException)
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
            self._copy_small(codec.bulk_field(result.success), into)
        return result.success

    def _copy_small(self, payload: bytes | None, into: memoryview) -> None:
        """The bulk field came within the envelope."""
        if payload is None or len(payload) != into.nbytes:
            raise ProtocolError(
                f"{self._peer()} sent {len(payload or b'')} bytes of {self._method}, not {into.nbytes}"
            )
        into[:] = payload

    def _read(self, buffer: memoryview, deadline: float) -> None:
        assert self._socket is not None
        while buffer.nbytes:
            self._socket.settimeout(_left(deadline))
            count = self._socket.recv_into(buffer)
            if not count:
                raise ConnectionResetError("it closed the connection")
            buffer = buffer[count:]

    def _last_words(self) -> str:
        """Why the peer closed the connection while we were still sending, if it said so."""
        try:
            self._receive(None, time.monotonic() + 1.0)
        except ProtocolError as error:
            return str(error)
        except OSError:
            pass
        return ""

    def _peer(self) -> str:
        return f"the {self.name} at {self.address}"


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
