"""The names under which the page may be called: another name comes from a foreign site.

Such a site can have its own name resolve to this machine (DNS rebinding), and then read the page's answers;
but it cannot change the `Host` and `Origin` that the browser sends.
"""

import socket
from collections.abc import Iterable

import psutil

from rpc.address import Address

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def own_names(address: Address, more: Iterable[str]) -> frozenset[str]:
    """Return the names and addresses of a page that listens at an address, in lower case, without ports."""
    names = {address.host, *more}
    if address.is_loopback:
        names |= set(_LOOPBACK)
    if address.host in ("0.0.0.0", "::"):
        names |= {*_LOOPBACK, socket.gethostname(), socket.getfqdn()}
        for entries in psutil.net_if_addrs().values():
            names |= {entry.address.partition("%")[0] for entry in entries if entry.family in _INTERNET}
    return frozenset(name.lower().rstrip(".") for name in names)


_INTERNET = (socket.AF_INET, socket.AF_INET6)


def host_name(header: str) -> str:
    """Return the name in a `Host` header, in lower case, without the port; empty if it is invalid."""
    if header.startswith("["):
        name, bracket, port = header[1:].partition("]")
        if not bracket or (port and not port.startswith(":")):
            return ""
        port = port.removeprefix(":")
    else:
        name, _, port = header.partition(":")
    if port and not (port.isascii() and port.isdigit()):
        return ""
    return name.lower().rstrip(".")
