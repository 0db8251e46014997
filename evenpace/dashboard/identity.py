"""What the page proves itself with to the manager, and under which name it calls one on this machine."""

import time
from dataclasses import dataclass, field
from pathlib import Path

from rpc.address import Address
from rpc.credentials import Credentials
from rpc.tokens import ALL_JOBS, Token, TokenKeys, issue

_VALID_SECONDS = 600  # of a token, which is shown once, to a new connection


@dataclass(frozen=True)
class MintedCredentials(Credentials):
    """With a token of all jobs for each connection, signed by the key that the file has then.

    Attributes:
        keys: From the manager's own file of keys.
    """

    keys: TokenKeys | None = field(default=None, repr=False)

    @classmethod
    def of(cls, tls: Credentials | None, key_file: Path) -> "MintedCredentials":
        """With the certificate of others.

        Raises:
            InvalidRequestError: The file of keys is of no use.
        """
        files = tls or Credentials()
        keys = TokenKeys(key_file)
        # A text must be there for connections to begin with a token at all.
        return cls(files.ca, files.certificate, files.key, None, _mint(keys), keys)

    def read_token(self) -> str:
        """A new one."""
        assert self.keys is not None
        return _mint(self.keys)


def _mint(keys: TokenKeys) -> str:
    return issue(keys, ALL_JOBS, int(time.time()) + _VALID_SECONDS)


def job_of(credentials: Credentials) -> str | None:
    """The one job that they are for; None where they are for all.

    Raises:
        InvalidRequestError, UnauthorisedError: The token cannot be read, or is none.
    """
    text = credentials.read_token()
    job = Token.parse(text).job if text else ALL_JOBS
    return None if job == ALL_JOBS else job


def from_here(address: Address, credentials: Credentials | None) -> Address:
    """Where a process on the same machine reaches a service that listens at an address.

    One that listens on all of the machine's addresses is called by loopback, or by a name that its
    certificate has.
    """
    if address.host not in ("0.0.0.0", "::", ""):
        return address
    loopback = "::1" if address.host == "::" else "127.0.0.1"
    if credentials is None or credentials.certificate is None:
        return Address(loopback, address.port)
    from evenpace.certificates import describe

    hosts = [host for host in describe(credentials.certificate)[0].hosts if not host.startswith("*")]
    known = [host for host in (loopback, "127.0.0.1", "localhost") if host in hosts]
    return Address((known + hosts + [loopback])[0], address.port)
