"""Credentials of a process: its certificate, a job's token, and the authorities that it trusts.

They are in files, which may be replaced while the process runs. Only the files' names are ever printed.
"""

import ssl
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Self

from idl.errors import InvalidRequestError, UnauthorisedError
from idl.settings import Setting
from rpc.places import Places, Where
from rpc.reloaded_files import Reloaded
from rpc.tokens import Purpose, Token

CA_FILE, CERTIFICATE_FILE, KEY_FILE = "ca.pem", "certificate.pem", "key.pem"  # in a folder of credentials


@dataclass(frozen=True)
class Credentials:
    """The credentials of one side of a connection.

    Raises:
        InvalidRequestError: One or two of `ca`, `certificate` and `key` are missing.
    """

    # Their certificates, one after another.
    ca: Annotated[Path | None, Setting("Trusted authorities' certificates, a PEM file.", folder=False)] = None
    # It is followed by those that lead to its authority.
    certificate: Annotated[Path | None, Setting("This side's certificate, a PEM file.", folder=False)] = None
    # It must not be encrypted.
    key: Annotated[Path | None, Setting("The certificate's key, a PEM file.", folder=False)] = None
    token: Annotated[
        Path | None,
        Setting(
            "A file with the job's token, if the services require one; see `evenpace token`.",
            name="token-file",
            folder=False,
        ),
    ] = None
    # In place of a token's file: a token that this process has made itself.
    token_text: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        given = [file is not None for file in (self.ca, self.certificate, self.key)]
        if any(given) and not all(given):
            raise InvalidRequestError(
                "TLS needs three files: the authority's certificates (ca), a certificate, and its key"
            )

    @classmethod
    def of_folder(cls, folder: Path, token: Path | None = None) -> Self:
        """Return the credentials in a folder that `evenpace certs issue` has made."""
        return cls(folder / CA_FILE, folder / CERTIFICATE_FILE, folder / KEY_FILE, token)

    def with_token(self, token: str | None) -> "Credentials":
        """Return credentials with the same certificate, and this token or none, whatever these have."""
        return Credentials(self.ca, self.certificate, self.key, token_text=token)

    @property
    def tls(self) -> bool:
        """Return whether there are certificates."""
        return self.ca is not None

    def contexts(self, *, server: bool) -> Reloaded[ssl.SSLContext]:
        """Return contexts for TLS 1.3 with certificates on both sides, read again when the files change.

        Raises:
            InvalidRequestError: A file cannot be read, or the files do not belong together.
        """
        assert self.ca is not None
        assert self.certificate is not None
        assert self.key is not None
        ca, certificate, key = self.ca, self.certificate, self.key
        return Reloaded((ca, certificate, key), lambda: _context(ca, certificate, key, server))

    def read_token(self) -> str:
        """Return the token that its file has, or last had; the empty string where there is none.

        Raises:
            InvalidRequestError: The file cannot be read, and never could.
            UnauthorisedError: It has no token, and never had.
        """
        return self._token_file.current() if self.token is not None else self.token_text or ""

    @cached_property
    def _token_file(self) -> Reloaded[str]:
        """The token's file, for all connections together."""
        assert self.token is not None
        return Reloaded((self.token,), partial(read_token, self.token))

    def check_target(self, where: Where) -> None:
        """Check that no token would be sent unencrypted to an address, or to one of a list of places.

        The addresses in a file of places are checked when they are dialled.

        Raises:
            InvalidRequestError: An address is not of this machine, and there are no certificates for TLS.
        """
        if self.tls or not (self.token or self.token_text):
            return
        for address in Places.of(where).addresses:
            if not address.is_loopback:
                raise InvalidRequestError(
                    f"a token would go to {address} in the clear: give certificates for TLS, too"
                )


def read_token(file: Path, purpose: Purpose = Purpose.JOB) -> str:
    """Return the token in a file.

    Raises:
        InvalidRequestError: The file cannot be read.
        UnauthorisedError: It has no token of this purpose.
    """
    try:
        text = file.read_text().strip()
        Token.parse(text, purpose)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"token file {str(file)!r}: {_reason(error)}") from None
    except UnauthorisedError as error:
        raise UnauthorisedError(f"token file {str(file)!r}: {error}") from None
    return text


def _context(ca: Path, certificate: Path, key: Path, server: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    if server:
        # No client resumes TLS sessions; and a ticket must not look like an answer to a call.
        context.num_tickets = 0
    try:
        context.load_verify_locations(ca)
    except (OSError, ValueError) as error:
        raise InvalidRequestError(f"certificates of authorities {str(ca)!r}: {_reason(error)}") from None
    try:
        context.load_cert_chain(certificate, key, _no_password)
    except (OSError, ValueError) as error:
        raise InvalidRequestError(
            f"certificate {str(certificate)!r} with key {str(key)!r}: {_reason(error)}"
        ) from None
    return context


def _no_password() -> str:
    raise ValueError("the key is encrypted; give one that is not, readable by its owner alone")


def _reason(error: Exception) -> str:
    """Return the reason why a file cannot be used, in words."""
    if isinstance(error, ssl.SSLError):
        if error.reason == "KEY_VALUES_MISMATCH":
            return "they do not belong together"
        return "not PEM files of the kind that is needed"
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return str(error)
