"""Network addresses as users write them: `HOST:PORT`, `[IPV6]:PORT`."""

import ipaddress
import socket
from typing import NamedTuple

from idl.errors import InvalidRequestError


class Address(NamedTuple):
    """A host and a TCP port, as the socket module takes them."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Parse `HOST:PORT` (InvalidRequestError: the text has no host or no port from 0 to 65535)."""
        host, colon, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
            raise InvalidRequestError(
                f"address {text!r}: give HOST:PORT with a port from 0 to 65535, as in 127.0.0.1:4300"
            )
        return cls(host, int(port))

    @property
    def is_loopback(self) -> bool:
        """Return whether only this machine can reach the address."""
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except OSError:
            return False
        hosts = [ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found]
        return bool(hosts) and all(host.is_loopback for host in hosts)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
