"""A client's connection: how it is made, with TLS where it is asked for, and why it broke."""

import socket
import ssl
import struct
from asyncio.trsock import TransportSocket
from collections.abc import Callable
from typing import Any

from idl.errors import ConnectionLostError, EvenpaceError, ProtocolError, UnauthorisedError
from rpc.address import Address
from rpc.reloaded_files import Reloaded

_ALERTS = {  # a peer's reason to refuse this side's certificate, by OpenSSL's name for the alert
    "EXPIRED": "it has expired",
    "UNKNOWN_CA": "it is of a certificate authority that the other side does not trust",
    "REQUIRED": "none was given",
    "REVOKED": "it was revoked",
    "CERTIFICATE": "it is not valid there",
    "ACCESS_DENIED": "access denied",
    "DECRYPT_ERROR": "its signature is wrong",
}


def dial(
    address: Address,
    timeout: float,
    contexts: Reloaded[ssl.SSLContext] | None,
    note: Callable[[socket.socket], None] = lambda connection: None,
) -> socket.socket:
    """Connect, with the TLS handshake if any.

    Args:
        timeout: Seconds for the connection, and for each step of the handshake.
        contexts: Contexts for TLS; None for plain TCP.
        note: Called with each connection before it is made; another thread may `shut_down` it.

    Raises:
        OSError: The connection failed; `connection_error` makes its reason readable.
    """
    host, _ = address  # which may be a plain pair
    failed = OSError(f"{host} has no address")
    for family, kind, protocol, _, at in socket.getaddrinfo(*address, type=socket.SOCK_STREAM):
        try:
            return _dialled(socket.socket(family, kind, protocol), at, host, timeout, contexts, note)
        except ssl.SSLError:
            raise
        except OSError as error:
            failed = error
    raise failed


def _dialled(
    connection: socket.socket,
    at: Any,
    host: str,
    timeout: float,
    contexts: Reloaded[ssl.SSLContext] | None,
    note: Callable[[socket.socket], None],
) -> socket.socket:
    """Connect a socket to one address of a host."""
    try:
        connection.settimeout(timeout)
        note(connection)
        connection.connect(at)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if contexts is not None:
            context = contexts.current()
            connection = context.wrap_socket(connection, server_hostname=host, do_handshake_on_connect=False)
            note(connection)
            connection.do_handshake()
    except OSError:
        connection.close()
        raise
    return connection


def is_only_tls(connection: socket.socket) -> bool:
    """Return whether the bytes to be read are TLS's own, such as a session ticket, and not an answer."""
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
    """Shut down a connection that another thread may be using."""
    # Not by the method of an SSL socket, after which that thread would send unencrypted.
    socket.socket.shutdown(connection, socket.SHUT_RDWR)


def reset_when_closed(connection: socket.socket | TransportSocket) -> None:
    """Make closing a connection reset it, so that the peer sees an error, not an end."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def connection_error(peer: str, what: str, error: OSError) -> EvenpaceError:
    """Return the error of a connection that broke.

    Args:
        peer: The server, in words.
        what: The connection's purpose, such as the method called.
        error: The operating system's error.
    """
    reason = (error.reason or "") if isinstance(error, ssl.SSLError) else ""
    if isinstance(error, ssl.SSLCertVerificationError):
        return UnauthorisedError(f"{peer} cannot be trusted: {error.verify_message}")
    if "ALERT" in reason:
        explanation = next((text for name, text in _ALERTS.items() if name in reason), reason)
        return UnauthorisedError(f"{peer} does not take this side's certificate: {explanation}")
    if reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNSUPPORTED_PROTOCOL"):
        return ProtocolError(f"{peer} does not speak TLS 1.3; was it started with certificates?")
    return ConnectionLostError(f"{peer} broke off {what}: {error}")
