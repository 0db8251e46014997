"""TLS on the server's side: a layer between a TCP transport and a `Peer`, to which it is the transport.

asyncio's own layer tells a peer of the connection only after the handshake, holds 256 KiB for each, keeps one
context for ever, encrypts an answer as a whole, and closes without the alert that would tell the other side
what is wrong with its certificate.
"""

import asyncio
import contextlib
import ssl
from collections import deque
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from rpc.peer import Peer

_PIECE = 2**18  # bytes; what is encrypted at once
_WINDOW = 2**20  # bytes that are encrypted and not sent
_HANDSHAKE_RECORD = 0x16  # what a peer that speaks TLS begins with
READ_BYTES = 2**18  # what is read from a socket at once


class TlsLayer(asyncio.BufferedProtocol):
    """One connection's TLS.

    Args:
        peer: Told of the connection at once, so that it counts, and of data once both sides are known.
        context: With this side's certificate.
        buffer: Of `READ_BYTES`, for all connections of one event loop: it is emptied before the next is read.
    """

    def __init__(self, peer: "Peer", context: ssl.SSLContext, buffer: memoryview) -> None:
        self._buffer = buffer
        self._peer = peer
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._begun = False
        self._shaken = False  # hands
        self._failed = False
        self._plain = False  # the peer does not speak TLS, and is told so as it would understand it
        self._backlog: deque[memoryview] = deque()  # not encrypted yet
        self._backlog_bytes = 0
        self._blocked = False  # the socket takes no more
        self._high = 2**16  # bytes; see `asyncio.WriteTransport.set_write_buffer_limits`
        self._peer_paused = False
        self._reading = True
        self._ending = self._ended = ""  # "eof" or "close": once the backlog is empty

    # -- the event loop calls these

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A TCP connection; the handshake is yet to come."""
        self._tcp = cast(asyncio.Transport, transport)
        self._tcp.set_write_buffer_limits(high=_WINDOW)
        self._peer.connection_made(cast(asyncio.Transport, self))

    def connection_lost(self, error: Exception | None) -> None:
        """It has gone."""
        self._backlog.clear()
        self._peer.connection_lost(error)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes from the socket go."""
        return self._buffer

    def buffer_updated(self, count: int) -> None:
        """Encrypted bytes have arrived."""
        if not self._begun and self._buffer[0] != _HANDSHAKE_RECORD:
            self._failed = self._plain = True
            self._peer.tls_failed("this service speaks TLS: give your side certificates (--tls), too")
        self._begun = True
        if not self._failed:
            self._incoming.write(self._buffer[:count])
            self._pump()

    def pause_writing(self) -> None:
        """The socket takes no more for now."""
        self._blocked = True

    def resume_writing(self) -> None:
        """It takes more."""
        self._blocked = False
        self._encrypt()

    # -- the peer calls these, as a transport's

    def write(self, data: bytes | memoryview) -> None:
        """Send, once the handshake is done; `data` is read as late as it can be sent."""
        if self._plain:
            self._tcp.write(data)
        if self._failed or not len(data):
            return
        view = memoryview(data).cast("B")
        self._backlog.append(view)
        self._backlog_bytes += view.nbytes
        self._encrypt()

    def writelines(self, parts: list[bytes | memoryview]) -> None:
        """Send several."""
        for part in parts:
            self.write(part)

    def get_write_buffer_size(self) -> int:
        """Bytes that have not left this process."""
        return self._backlog_bytes + self._tcp.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int) -> None:
        """From how many bytes on the peer is told to pause."""
        self._high = high

    def can_write_eof(self) -> bool:
        """It can."""
        return True

    def write_eof(self) -> None:
        """Say that nothing follows, once all is sent."""
        self._ending = self._ending or "eof"
        self._encrypt()

    def close(self) -> None:
        """Close, once all is sent; at once where no handshake was made."""
        self._ending = "close"
        self._encrypt()
        if not self._shaken:
            self._tcp.close()

    def abort(self) -> None:
        """Close at once."""
        self._tcp.abort()

    def is_closing(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._ending == "close" or self._tcp.is_closing()

    def pause_reading(self) -> None:
        """Leave what comes where it is."""
        self._reading = False
        self._tcp.pause_reading()

    def resume_reading(self) -> None:
        """Take it again."""
        self._reading = True
        self._tcp.resume_reading()
        asyncio.get_running_loop().call_soon(self._pump)  # what was there already

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """See `asyncio.BaseTransport`."""
        return self._tcp.get_extra_info(name, default)

    # -- within

    def _pump(self) -> None:
        """Go on with what has arrived."""
        if self._failed or self._tcp.is_closing():
            return
        try:
            if not self._shaken:
                self._tls.do_handshake()
                self._shaken = True
                self._peer.secured()
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
        """Hand on all that has come; ends with an exception, as a rule `SSLWantReadError`."""
        while self._reading and not self._tcp.is_closing():
            buffer = self._peer.get_buffer(-1)
            filled = 0
            try:
                while filled < len(buffer):
                    filled += self._tls.read(len(buffer) - filled, buffer[filled:])  # type: ignore[operator]
            finally:
                if filled:
                    self._peer.buffer_updated(filled)

    def _encrypt(self) -> None:
        """Encrypt and send as much as the socket takes."""
        while self._backlog and self._shaken and not self._blocked and not self._tcp.is_closing():
            view = self._backlog[0]
            count = self._tls.write(view[:_PIECE])
            self._backlog_bytes -= count
            if count < view.nbytes:
                self._backlog[0] = view[count:]
            else:
                self._backlog.popleft()
            self._flush()
        self._tell_peer()
        if self._ending != self._ended and not self._backlog and (self._shaken or self._failed):
            self._end()

    def _tell_peer(self) -> None:
        """Pause the peer, or let it go on."""
        waiting = self._backlog_bytes
        if not self._peer_paused and waiting > self._high:
            self._peer_paused = True
            self._peer.pause_writing()
        elif self._peer_paused and waiting <= self._high // 4:
            self._peer_paused = False
            self._peer.resume_writing()

    def _end(self) -> None:
        self._ended = self._ending
        if self._shaken and not self._failed:
            with contextlib.suppress(ssl.SSLError):  # the other side's goodbye is not waited for
                self._tls.unwrap()
        self._flush()
        if self._ending == "close":
            self._tcp.close()
        elif not self._tcp.is_closing() and self._tcp.can_write_eof():
            self._tcp.write_eof()

    def _fail(self, error: ssl.SSLError) -> None:
        """The other side is not who it must be, or does not speak TLS: tell it by an alert."""
        self._failed = True
        self._backlog.clear()
        self._backlog_bytes = 0
        self._flush()
        text = (error.reason or str(error)).replace("_", " ").lower()
        if isinstance(error, ssl.SSLCertVerificationError):
            text = error.verify_message
        self._peer.tls_failed(f"TLS: {text}")

    def _flush(self) -> None:
        if self._outgoing.pending and not self._tcp.is_closing():
            self._tcp.write(self._outgoing.read())
