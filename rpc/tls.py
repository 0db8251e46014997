"""TLS on the server's side: a layer between a TCP transport and a `Peer`, to which it is the transport.

asyncio's own layer reports a connection to the protocol only after the handshake, holds 256 KiB for each,
keeps one context for ever, encrypts an answer as a whole, and closes without the alert that would tell the
other side what is wrong with its certificate.
"""

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any, cast

_PIECE = 2**18  # bytes that are encrypted at once
_WINDOW = 2**20  # bytes that are encrypted and not sent, at most
_HANDSHAKE_RECORD = 0x16  # the first byte of a peer that speaks TLS
READ_BYTES = 2**18  # bytes that are read from a socket at once


class TlsLayer(asyncio.BufferedProtocol):
    """The TLS of one connection.

    Args:
        peer: The protocol above. It learns of the connection at once, so that it is counted, and gets data
            after the handshake.
        context: The context with this side's certificate.
        buffer: Memory of `READ_BYTES`, shared by all connections of one event loop: it is processed before
            the next connection is read.
        secured: Called once the handshake has shown a certificate of a trusted authority.
        failed: Called with a message if the handshake fails.
    """

    def __init__(
        self,
        peer: asyncio.BufferedProtocol,
        context: ssl.SSLContext,
        buffer: memoryview,
        *,
        secured: Callable[[], None],
        failed: Callable[[str], None],
    ) -> None:
        self._buffer = buffer
        self._peer = peer
        self._secured_peer = secured
        self._fail_peer = failed
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._begun = False
        self._handshaken = False
        self._failed = False
        self._plain = False  # the peer does not speak TLS, and is told so unencrypted
        self._backlog: deque[memoryview] = deque()  # not encrypted yet
        self._backlog_bytes = 0
        self._blocked = False  # the socket takes no more
        self._high = 2**16  # bytes; see `asyncio.WriteTransport.set_write_buffer_limits`
        self._peer_paused = False
        self._reading = True
        self._ending = self._ended = ""  # "eof" or "close": to be done once the backlog is empty; done

    # -- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Handle a new TCP connection, before its handshake."""
        self._tcp = cast(asyncio.Transport, transport)
        self._tcp.set_write_buffer_limits(high=_WINDOW)
        self._peer.connection_made(cast(asyncio.Transport, self))

    def connection_lost(self, error: Exception | None) -> None:
        """Handle the end of the TCP connection."""
        self._backlog.clear()
        self._peer.connection_lost(error)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the memory for the next bytes from the socket."""
        return self._buffer

    def buffer_updated(self, count: int) -> None:
        """Process `count` encrypted bytes that have arrived."""
        if not self._begun and self._buffer[0] != _HANDSHAKE_RECORD:
            self._failed = self._plain = True
            self._fail_peer("this service speaks TLS: give your side certificates (--tls), too")
        self._begun = True
        if not self._failed:
            self._incoming.write(self._buffer[:count])
            self._process()

    def pause_writing(self) -> None:
        """Stop encrypting, since the socket takes no more for now."""
        self._blocked = True

    def resume_writing(self) -> None:
        """Encrypt again, since the socket takes more."""
        self._blocked = False
        self._encrypt()

    # -- called by the peer, as a transport's methods

    def write(self, data: bytes | memoryview) -> None:
        """Send data once the handshake is done; its memory is read only when it can be sent."""
        if self._plain:
            self._tcp.write(data)
        if self._failed or not len(data):
            return
        view = memoryview(data).cast("B")
        self._backlog.append(view)
        self._backlog_bytes += view.nbytes
        self._encrypt()

    def writelines(self, parts: list[bytes | memoryview]) -> None:
        """Send several parts."""
        for part in parts:
            self.write(part)

    def get_write_buffer_size(self) -> int:
        """Return the bytes that have not left this process."""
        return self._backlog_bytes + self._tcp.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int) -> None:
        """Set the unsent bytes above which the peer's `pause_writing` is called."""
        self._high = high

    def can_write_eof(self) -> bool:
        """Return True, as `asyncio.WriteTransport.can_write_eof`."""
        return True

    def write_eof(self) -> None:
        """End the sending direction once all is sent."""
        self._ending = self._ending or "eof"
        self._encrypt()

    def close(self) -> None:
        """Close once all is sent; at once where the handshake is not complete."""
        self._ending = "close"
        self._encrypt()
        if not self._handshaken:
            self._tcp.close()

    def abort(self) -> None:
        """Close at once."""
        self._tcp.abort()

    def is_closing(self) -> bool:
        """Return whether nothing can be sent any more."""
        return self._ending == "close" or self._tcp.is_closing()

    def pause_reading(self) -> None:
        """Stop reading from the socket."""
        self._reading = False
        self._tcp.pause_reading()

    def resume_reading(self) -> None:
        """Read from the socket again."""
        self._reading = True
        self._tcp.resume_reading()
        asyncio.get_running_loop().call_soon(self._process)  # bytes that arrived before the pause

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return the TCP transport's information; see `asyncio.BaseTransport`."""
        return self._tcp.get_extra_info(name, default)

    # -- within

    def _process(self) -> None:
        """Continue the handshake, or decrypt, with the bytes that have arrived."""
        if self._failed or self._tcp.is_closing():
            return
        try:
            if not self._handshaken:
                self._tls.do_handshake()
                self._handshaken = True
                self._secured_peer()
                self._encrypt()
            self._decrypt()
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self._flush()
            self._tcp.close()
            return
        except ssl.SSLError as error:
            self._fail(error)
            return
        self._flush()

    def _decrypt(self) -> None:
        """Decrypt all bytes that have arrived; ends with an exception, as a rule `SSLWantReadError`."""
        while self._reading and not self._tcp.is_closing():
            buffer = memoryview(self._peer.get_buffer(-1))
            filled = 0
            try:
                while filled < len(buffer):
                    filled += self._tls.read(len(buffer) - filled, buffer[filled:])  # type: ignore[operator]
            finally:
                if filled:
                    self._peer.buffer_updated(filled)

    def _encrypt(self) -> None:
        """Encrypt and send as much as the socket takes."""
        while self._backlog and self._handshaken and not self._blocked and not self._tcp.is_closing():
            view = self._backlog[0]
            count = self._tls.write(view[:_PIECE])
            self._backlog_bytes -= count
            if count < view.nbytes:
                self._backlog[0] = view[count:]
            else:
                self._backlog.popleft()
            self._flush()
        self._update_peer()
        if self._ending != self._ended and not self._backlog and (self._handshaken or self._failed):
            self._end()

    def _update_peer(self) -> None:
        """Pause the peer's writing, or resume it, by the bytes that are unsent."""
        waiting = self._backlog_bytes
        if not self._peer_paused and waiting > self._high:
            self._peer_paused = True
            self._peer.pause_writing()
        elif self._peer_paused and waiting <= self._high // 4:
            self._peer_paused = False
            self._peer.resume_writing()

    def _end(self) -> None:
        self._ended = self._ending
        if self._handshaken and not self._failed:
            with contextlib.suppress(ssl.SSLError):  # the other side's close_notify is not waited for
                self._tls.unwrap()
        self._flush()
        if self._ending == "close":
            self._tcp.close()
        elif not self._tcp.is_closing() and self._tcp.can_write_eof():
            self._tcp.write_eof()

    def _fail(self, error: ssl.SSLError) -> None:
        """Send the alert of a failed handshake, and have the peer refuse the connection."""
        self._failed = True
        self._backlog.clear()
        self._backlog_bytes = 0
        self._flush()
        text = (error.reason or str(error)).replace("_", " ").lower()
        if isinstance(error, ssl.SSLCertVerificationError):
            text = error.verify_message
        self._fail_peer(f"TLS: {text}")

    def _flush(self) -> None:
        if self._outgoing.pending and not self._tcp.is_closing():
            self._tcp.write(self._outgoing.read())
