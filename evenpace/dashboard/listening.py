"""The socket that the page listens on; the manager binds it before it starts the page, and passes it on."""

import errno
import socket

from evenpace.dashboard.config import check_http
from idl.errors import AddressInUseError, ConnectionLostError
from rpc.address import Address

_UNTAKEN_SECONDS = 30.0  # for a peer to acknowledge what was sent, before the system drops it


def listen(address: Address) -> socket.socket:
    """Return a socket that listens for the page.

    Raises:
        AddressInUseError: Something listens there already.
        ConnectionLostError: The address cannot be listened on.
    """
    try:
        family, *_, where = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(where, family=family, backlog=256)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise AddressInUseError(
                f"{address} is in use: the page cannot be there; choose another port with --http"
            ) from error
        raise ConnectionLostError(f"the page cannot listen on {address}: {error}") from error
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        milliseconds = int(_UNTAKEN_SECONDS * 1000)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
    return listener


def address_of(listener: socket.socket) -> Address:
    """Return the address of a listening socket."""
    return Address(*listener.getsockname()[:2])


def free_page_address(http: Address) -> Address:
    """Return the address of a page without TLS, with a free port instead of 0.

    Raises:
        InvalidRequestError: Other machines could reach the address.
        AddressInUseError, ConnectionLostError: The address cannot be used.
    """
    check_http(http, None, insecure=False)
    with listen(http) as listener:
        return address_of(listener)
