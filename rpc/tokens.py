"""Tokens, signed with a key that only the services have: for one job or all, or for a shared cluster's users.

A token is `evenpace1.PAYLOAD.MAC`, both parts in unpadded URL-safe base 64. The payload is the time at which
it expires, in seconds since 1970 as a big-endian u64 (0: never), 16 random bytes, and the job's name in
UTF-8, or "*" for all jobs; the MAC is HMAC-SHA256 over "evenpace1." and the payload. That of a user of a
shared cluster begins with `evenpace-cluster1.`, over which it is signed, too, and has the user's name, or "*"
for an operator: signed with the same key, neither passes for the other. A key file has a key in each line, 32
bytes in hexadecimal digits: the first signs, all are accepted.
"""

import base64
import binascii
import hashlib
import hmac
import re
import secrets
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

from idl.errors import InvalidRequestError, UnauthorisedError
from rpc.reloaded_files import Reloaded
from rpc.writing import replacing

ALL_JOBS = "*"  # in place of a job's name
OPERATOR = "*"  # in place of a user's name
_KEY_BYTES = 32
_MAC_BYTES = hashlib.sha256().digest_size
_FIXED = struct.Struct(">Q16s")  # expires at, nonce
_KEY = re.compile(r"[0-9a-fA-F]{64}")
_MAX_NAME = 200  # characters; as of jobs in `idl.check`
_MAX_TOKEN = 2000  # characters
_MAX_KEYS = 100


class Purpose(StrEnum):
    """What a token is for, as its beginning, which is signed: one of another purpose is not valid."""

    JOB = "evenpace1."
    CLUSTER = "evenpace-cluster1."

    @property
    def whose(self) -> str:
        """Return who has a token's name."""
        return "job" if self is Purpose.JOB else "user"


@dataclass(frozen=True)
class Token:
    """A token's contents, before its signature is checked."""

    name: str  # of the job that it is for, or `ALL_JOBS`; of a cluster's user, or `OPERATOR`
    expires: int  # seconds since 1970; 0 for never
    payload: bytes = field(repr=False)  # the signed bytes
    mac: bytes = field(repr=False)  # the signature

    @classmethod
    def parse(cls, text: str, purpose: Purpose = Purpose.JOB) -> "Token":
        """Parse a token.

        Raises:
            UnauthorisedError: The text is no token of this purpose. The error does not show it.
        """
        other = Purpose.CLUSTER if purpose is Purpose.JOB else Purpose.JOB
        if text.startswith(other):
            raise UnauthorisedError(
                f"the token is for a {other.whose}, and one for a {purpose.whose} is needed"
            )
        try:
            if not text.startswith(purpose) or len(text) > _MAX_TOKEN or not text.isascii():
                raise ValueError
            payload, mac = (_decode(part) for part in text.removeprefix(purpose).split("."))
            expires, _ = _FIXED.unpack_from(payload)
            if len(mac) != _MAC_BYTES:  # as in a file that is not written to its end yet
                raise ValueError
            return cls(payload[_FIXED.size :].decode(), expires, payload, mac)
        except (ValueError, binascii.Error, struct.error):
            raise UnauthorisedError("what was given is not a token; see `evenpace token issue`") from None


def issue(keys: "TokenKeys", name: str, expires: int, purpose: Purpose = Purpose.JOB) -> str:
    """Issue a new token.

    Args:
        keys: The keys, of which the first signs.
        name: That of the job that it is for, or `ALL_JOBS`; for a cluster, of the user, or `OPERATOR`.
        expires: Seconds since 1970; 0 for never.

    Raises:
        InvalidRequestError: No job or user can have the name.
    """
    if not 0 < len(name) <= _MAX_NAME or not name.isprintable() or "/" in name:
        raise InvalidRequestError(
            f"{purpose.whose} {name!r}: must be 1 to {_MAX_NAME} printable characters without '/'"
        )
    payload = _FIXED.pack(expires, secrets.token_bytes(16)) + name.encode()
    return f"{purpose}{_encode(payload)}.{_encode(_sign(keys.current()[0], purpose, payload))}"


def new_key() -> bytes:
    """Draw a random key for `TokenKeys`."""
    return secrets.token_bytes(_KEY_BYTES)


class TokenKeys:
    """Keys that sign tokens and check them.

    Args:
        source: A file, read again when it changes; or one key, which a service has drawn itself; or what
            `current` has returned elsewhere.

    Raises:
        InvalidRequestError: The file cannot be read or has no keys, or the key has another length.
    """

    def __init__(self, source: Path | bytes | tuple[bytes, ...]) -> None:
        if isinstance(source, bytes):
            if len(source) != _KEY_BYTES:
                raise InvalidRequestError(f"a key of {len(source)} bytes: must be {_KEY_BYTES}")
            source = (source,)
        self._keys: Callable[[], tuple[bytes, ...]]
        if isinstance(source, tuple):
            keys = source
            self._keys = lambda: keys
        else:
            self._keys = Reloaded((source,), lambda: _read_keys(source)).current

    def current(self) -> tuple[bytes, ...]:
        """Return the keys, as their file has them at present."""
        return self._keys()

    def verify(self, text: str, now: float, purpose: Purpose = Purpose.JOB) -> Token:
        """Return the contents of a token, whose signature and time are checked.

        Args:
            text: The token.
            now: Seconds since 1970.

        Raises:
            UnauthorisedError: It is not valid, or for another purpose.
        """
        token = Token.parse(text, purpose)
        signed = (_sign(key, purpose, token.payload) for key in self.current())
        if not any(hmac.compare_digest(mac, token.mac) for mac in signed):
            raise UnauthorisedError("the token is not signed with a key of this service")
        if token.expires and now >= token.expires:
            on = f"{datetime.fromtimestamp(token.expires, UTC):%Y-%m-%d %H:%M} UTC"
            raise UnauthorisedError(f"the token for {purpose.whose} {token.name!r} has expired, on {on}")
        return token

    def check(self, text: str, job: str, now: float) -> None:
        """Check that a token is valid for a job; see `verify`.

        Raises:
            UnauthorisedError: It is not.
        """
        token = self.verify(text, now)
        if not hmac.compare_digest(token.name.encode(), job.encode()):
            raise UnauthorisedError(f"the token is for job {token.name!r}, not for {job!r}")


def write_new_key(file: Path, *, add: bool) -> None:
    """Draw a key, and write it to a new file or before the keys of an existing one.

    Args:
        add: Whether the file may exist.

    Raises:
        InvalidRequestError: The file exists and `add` is false, or it is no key file.
    """
    lines = [new_key().hex()]
    if file.exists():
        if not add:
            raise InvalidRequestError(
                f"{str(file)!r} is there already; --add puts a new key before those in it"
            )
        lines += [known.hex() for known in _read_keys(file)]
    write_secret(file, "".join(f"{line}\n" for line in lines))


def write_secret(file: Path, content: str | bytes) -> None:
    """Write a file atomically that only its owner can read.

    Raises:
        OSError: The file cannot be written; it names `file`.
    """
    with replacing(file) as stream:
        stream.write(content.encode() if isinstance(content, str) else content)


def _read_keys(file: Path) -> tuple[bytes, ...]:
    try:
        lines = [line.strip() for line in file.read_text().splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text"
        raise InvalidRequestError(f"token keys {str(file)!r}: {reason}") from None
    if not 0 < len(lines) <= _MAX_KEYS or not all(_KEY.fullmatch(line) for line in lines):
        raise InvalidRequestError(
            f"token keys {str(file)!r}: must be 1 to {_MAX_KEYS} lines as of `evenpace token new-key`"
        )
    return tuple(bytes.fromhex(line) for line in lines)


def _sign(key: bytes, purpose: Purpose, payload: bytes) -> bytes:
    return hmac.digest(key, purpose.encode() + payload, hashlib.sha256)


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    # Only one text for each value: no padding, no other alphabet, no stray bits.
    data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    if _encode(data) != text:
        raise ValueError
    return data
