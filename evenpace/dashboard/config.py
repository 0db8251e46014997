"""The configuration of a page."""

import ipaddress
import re
from dataclasses import dataclass, field
from typing import Annotated

from idl.errors import InvalidRequestError
from idl.settings import Setting, check_settings
from rpc.address import Address
from rpc.credentials import Credentials
from rpc.places import Where

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")

_HTTP = Address("127.0.0.1", 4380)


@dataclass(frozen=True)
class PageConfig:
    """The configuration of a page: its address, and its limits.

    Raises:
        InvalidRequestError: A value is not allowed.
    """

    # Where to listen; port 0 takes a free one.
    http: Annotated[Address, Setting("Where the page is; port 0 takes a free one.")] = _HTTP
    # Their certificate is the page's; a manager is asked with them, too.
    credentials: Credentials = field(default_factory=Credentials)
    names: Annotated[
        tuple[str, ...],
        Setting(
            "Another name under which browsers may call the page; may be repeated.",
            name="http-name",
            metavar="NAME|IP",
        ),
    ] = ()
    insecure: Annotated[bool, Setting("Listen to other machines without TLS: for trusted networks.")] = False
    viewers: Annotated[int, Setting("Most viewers at once.", name="max-viewers", least=1)] = 100
    # From a connection's start or last answer.
    request_timeout: Annotated[
        int,
        Setting("Seconds for a connection to send a whole request; then it is closed.", least=1),
    ] = 20
    # Seconds from one look at the service that is shown to the next while somebody looks.
    interval: Annotated[float, Setting(above=0)] = 1.0
    idle_interval: float = 10.0  # likewise, while nobody does

    def __post_init__(self) -> None:
        check_settings(self)
        for name in self.names:
            if not _NAME.fullmatch(name) and not _is_address(name):
                raise InvalidRequestError(f"name {name!r}: must be a host's name or address, without a port")

    def check(self) -> None:
        """Check that the page may be served at its address.

        Raises:
            InvalidRequestError: Others could reach it without TLS.
        """
        check_http(self.http, self.credentials, insecure=self.insecure)

    @property
    def tls(self) -> bool:
        """Whether browsers are served with TLS."""
        return self.credentials.tls

    @property
    def scheme(self) -> str:
        """The scheme of the page's address."""
        return "https" if self.tls else "http"


@dataclass(frozen=True)
class ManagerPageConfig(PageConfig):
    """The configuration of the page about a manager's jobs."""

    manager: Annotated[Where, Setting("The BatchSizeManager.")] = field(kw_only=True)
    plain_http: Annotated[
        bool, Setting("Serve browsers without TLS, which the manager is asked with: on this machine alone.")
    ] = False

    def check(self) -> None:
        """See `PageConfig.check`."""
        if self.plain_http:
            check_plain(self.http)
        super().check()

    @property
    def tls(self) -> bool:
        """Whether browsers are served with TLS."""
        return super().tls and not self.plain_http


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


def check_plain(address: Address) -> None:
    """Check that a page without TLS may be served at an address.

    Raises:
        InvalidRequestError: Others could reach it.
    """
    if not address.is_loopback:
        raise InvalidRequestError(
            f"others could reach the page at {address} without TLS: choose an address of 127.0.0.1"
        )


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
