"""Addresses as people write them: `HOST:PORT`, `[IPV6]:PORT`."""

from typing import NamedTuple

from rpc.errors import InvalidRequestError


class Address(NamedTuple):
    """A host and a TCP port, as the socket module takes them."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Read `HOST:PORT`.

        Raises:
            InvalidRequestError: The text has no host or no port from 0 to 65535.
        """
        host, colon, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
            raise InvalidRequestError(
                f"address {text!r}: give HOST:PORT with a port from 0 to 65535, as in 127.0.0.1:4300"
            )
        return cls(host, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
