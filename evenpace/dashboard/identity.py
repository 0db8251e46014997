"""The page's credentials at the manager, and the address of a manager on this machine."""

import time
from dataclasses import dataclass, field
from pathlib import Path

from rpc.address import Address
from rpc.credentials import Credentials
from rpc.tokens import ALL_JOBS, Token, TokenKeys, issue

_VALID_SECONDS = 600  # of a token, which is used once, for a new connection


@dataclass(frozen=True)
class MintedCredentials(Credentials):
    """Credentials with a new token of all jobs for each connection, signed by the present key."""

    keys: TokenKeys | None = field(default=None, repr=False)  # the keys in the manager's own file of keys

    @classmethod
    def of(cls, tls: Credentials | None, key_file: Path) -> "MintedCredentials":
        """Make credentials with the certificate of others.

        Raises:
            InvalidRequestError: The file of keys cannot be used.
        """
        files = tls or Credentials()
        keys = TokenKeys(key_file)
        # A text must be there for connections to begin with a token at all.
        return cls(files.ca, files.certificate, files.key, None, _mint(keys), keys)

    def read_token(self) -> str:
        """Return a new token."""
        assert self.keys is not None
        return _mint(self.keys)


def _mint(keys: TokenKeys) -> str:
    return issue(keys, ALL_JOBS, int(time.time()) + _VALID_SECONDS)


def job_of(credentials: Credentials) -> str | None:
    """Return the one job that credentials are for; None if they are for all jobs.

    Raises:
        InvalidRequestError, UnauthorisedError: The token cannot be read, or is invalid.
    """
    text = credentials.read_token()
    job = Token.parse(text).name if text else ALL_JOBS
    return None if job == ALL_JOBS else job


def from_here(address: Address, credentials: Credentials | None) -> Address:
    """Return the address at which this machine reaches a service that listens at `address`.

    A service on all of the machine's addresses is called by loopback, or by a name that its
    certificate has.
    """
    if address.host not in ("0.0.0.0", "::", ""):
        return address
    loopback = "::1" if address.host == "::" else "127.0.0.1"
    if credentials is None or credentials.certificate is None:
        return Address(loopback, address.port)
    from rpc.certificates import describe

    hosts = [host for host in describe(credentials.certificate)[0].hosts if not host.startswith("*")]
    known = [host for host in (loopback, "127.0.0.1", "localhost") if host in hosts]
    return Address((known + hosts + [loopback])[0], address.port)
