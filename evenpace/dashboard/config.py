"""The configuration of the page."""

import ipaddress
import re
from dataclasses import dataclass, field

from idl.errors import InvalidRequestError
from rpc.address import Address
from rpc.credentials import Credentials

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")


@dataclass(frozen=True)
class PageConfig:
    """The configuration of the page: its manager, its address, and its limits.

    Attributes:
        manager: The manager's address.
        http: The address to listen on; port 0 takes a free one.
        credentials: Credentials for the manager; the certificate is the page's, too.
        names: Further names or addresses under which browsers may call the page.
        insecure: Whether other machines may reach the page without TLS.
        viewers: The most viewers who may follow at once.
        request_timeout: Seconds from a connection's start or last answer until its next request is whole.
        interval: Seconds between polls of the manager while there are viewers.
        idle_interval: Seconds between polls without viewers.

    Raises:
        InvalidRequestError: A value is not allowed, or other machines could reach the page without TLS.
    """

    manager: Address
    http: Address
    credentials: Credentials = field(default_factory=Credentials)
    names: tuple[str, ...] = ()
    insecure: bool = False
    viewers: int = 100
    request_timeout: int = 20
    interval: float = 1.0
    idle_interval: float = 10.0

    def __post_init__(self) -> None:
        for name in self.names:
            if not _NAME.fullmatch(name) and not _is_address(name):
                raise InvalidRequestError(f"name {name!r}: must be a host's name or address, without a port")
        for what in ("viewers", "request_timeout", "interval"):
            value = getattr(self, what)
            if not value > 0:
                raise InvalidRequestError(f"{what} {value}: must be above 0")
        check_http(self.http, self.credentials, insecure=self.insecure)

    @property
    def scheme(self) -> str:
        """The scheme of the page's address."""
        return "https" if self.credentials.tls else "http"


def check_http(address: Address, credentials: Credentials | None, *, insecure: bool) -> None:
    """Check that the page may be served at an address.

    Raises:
        InvalidRequestError: Other machines could reach it without TLS.
    """
    if insecure or (credentials is not None and credentials.tls) or address.is_loopback:
        return
    raise InvalidRequestError(
        f"others could reach the page at {address} without TLS: give --tls (see docs/security.md), choose an "
        f"address of 127.0.0.1, or say --insecure if the network is trusted"
    )


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
