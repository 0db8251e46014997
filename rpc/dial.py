"""How a client's connection is made, with TLS where it is asked for, and why it broke."""

import socket
import ssl
import struct
from asyncio.trsock import TransportSocket

from idl.errors import ConnectionLostError, EvenpaceError, ProtocolError, UnauthorisedError
from rpc.address import Address
from rpc.reloaded_files import Reloaded

_ALERTS = {  # what a peer says of our certificate, by OpenSSL's name for the alert
    "EXPIRED": "it has expired",
    "UNKNOWN_CA": "it is of a certificate authority that the other side does not trust",
    "REQUIRED": "none was given",
    "REVOKED": "it was revoked",
    "CERTIFICATE": "it is not valid there",
    "ACCESS_DENIED": "access denied",
    "DECRYPT_ERROR": "its signature is wrong",
}


def dial(address: Address, timeout: float, contexts: Reloaded[ssl.SSLContext] | None) -> socket.socket:
    """A new connection, its TLS handshake done.

    Args:
        address: Whom to call.
        timeout: Seconds, for the connection and for each step of the handshake.
        contexts: For TLS; None for plain TCP.

    Raises:
        OSError: There is no connection; as an `ssl.SSLError`, `broken` has the reason.
    """
    connection = socket.create_connection(address, timeout=timeout)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if contexts is not None:
            connection = contexts.current().wrap_socket(connection, server_hostname=address.host)
    except OSError:
        connection.close()
        raise
    return connection


def is_only_tls(connection: socket.socket) -> bool:
    """Whether what there is to read is TLS's own, such as a session ticket, and nothing of the peer's."""
    if not isinstance(connection, ssl.SSLSocket):
        return False
    connection.settimeout(0)
    try:
        connection.recv(1)
    except ssl.SSLWantReadError:
        return True
    except OSError:
        pass
    return False


def shut_down(connection: socket.socket) -> None:
    """End a connection that another thread may be using."""
    # Not by the method of an SSL socket, which would let that thread send in the clear what comes next.
    socket.socket.shutdown(connection, socket.SHUT_RDWR)


def reset_when_closed(connection: socket.socket | TransportSocket) -> None:
    """Let closing a connection reset it, so that the peer sees it break off, not end."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def broken(peer: str, what: str, error: OSError) -> EvenpaceError:
    """What a client is to be told of a connection that broke.

    Args:
        peer: Who was called, in words.
        what: What the connection was used for.
        error: How it broke.
    """
    reason = (error.reason or "") if isinstance(error, ssl.SSLError) else ""
    if isinstance(error, ssl.SSLCertVerificationError):
        return UnauthorisedError(f"{peer} cannot be trusted: {error.verify_message}")
    if "ALERT" in reason:
        said = next((text for name, text in _ALERTS.items() if name in reason), reason)
        return UnauthorisedError(f"{peer} does not take this side's certificate: {said}")
    if reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNSUPPORTED_PROTOCOL"):
        return ProtocolError(f"{peer} does not speak TLS 1.3; was it started with certificates?")
    return ConnectionLostError(f"{peer} broke off {what}: {error}")
