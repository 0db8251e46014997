"""Tokens, which grant access to one job or to all jobs, signed with a key that only the services have.

A token is `evenpace1.PAYLOAD.MAC`, both parts in unpadded URL-safe base 64. The payload is the time at which
it expires, in seconds since 1970 as a big-endian u64 (0: never), 16 random bytes, and the job's name in
UTF-8, or "*" for all jobs; the MAC is HMAC-SHA256 over "evenpace1." and the payload. A key file has a key in
each line, 32 bytes in hexadecimal digits: the first signs, all are accepted.
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
from pathlib import Path

from idl.errors import InvalidRequestError, UnauthorisedError
from rpc.reloaded_files import Reloaded
from rpc.writing import replacing

ALL_JOBS = "*"  # in place of a job's name
_PREFIX = "evenpace1."
_KEY_BYTES = 32
_MAC_BYTES = hashlib.sha256().digest_size
_FIXED = struct.Struct(">Q16s")  # expires at, nonce
_KEY = re.compile(r"[0-9a-fA-F]{64}")
_MAX_JOB = 200  # characters; as in `idl.check`
_MAX_TOKEN = 2000  # characters
_MAX_KEYS = 100


@dataclass(frozen=True)
class Token:
    """A token's contents, before its signature is checked."""

    job: str  # the job that it is for, or `ALL_JOBS`
    expires: int  # seconds since 1970; 0 for never
    payload: bytes = field(repr=False)  # the signed bytes
    mac: bytes = field(repr=False)  # the signature

    @classmethod
    def parse(cls, text: str) -> "Token":
        """Parse a token.

        Raises:
            UnauthorisedError: The text is no token. The error does not show it.
        """
        try:
            if not text.startswith(_PREFIX) or len(text) > _MAX_TOKEN or not text.isascii():
                raise ValueError
            payload, mac = (_decode(part) for part in text.removeprefix(_PREFIX).split("."))
            expires, _ = _FIXED.unpack_from(payload)
            if len(mac) != _MAC_BYTES:  # as in a file that is not written to its end yet
                raise ValueError
            return cls(payload[_FIXED.size :].decode(), expires, payload, mac)
        except (ValueError, binascii.Error, struct.error):
            raise UnauthorisedError("what was given is not a token; see `evenpace token issue`") from None


def issue(keys: "TokenKeys", job: str, expires: int) -> str:
    """Issue a new token.

    Args:
        keys: The keys, of which the first signs.
        job: The job that it is for, or `ALL_JOBS`.
        expires: Seconds since 1970; 0 for never.

    Raises:
        InvalidRequestError: No job can have the name.
    """
    if not 0 < len(job) <= _MAX_JOB or not job.isprintable() or "/" in job:
        raise InvalidRequestError(f"job {job!r}: must be 1 to {_MAX_JOB} printable characters without '/'")
    payload = _FIXED.pack(expires, secrets.token_bytes(16)) + job.encode()
    return f"{_PREFIX}{_encode(payload)}.{_encode(_sign(keys.current()[0], payload))}"


def new_key() -> bytes:
    """Draw a random key for `TokenKeys`."""
    return secrets.token_bytes(_KEY_BYTES)


class TokenKeys:
    """Keys that sign tokens and check them.

    Args:
        source: A file, read again when it changes; or one key, which a service has drawn itself.

    Raises:
        InvalidRequestError: The file cannot be read or has no keys, or the key has another length.
    """

    def __init__(self, source: Path | bytes) -> None:
        if isinstance(source, bytes):
            if len(source) != _KEY_BYTES:
                raise InvalidRequestError(f"a key of {len(source)} bytes: must be {_KEY_BYTES}")
            self._keys: Callable[[], tuple[bytes, ...]] = lambda: (source,)
        else:
            self._keys = Reloaded((source,), lambda: _read_keys(source)).current

    def current(self) -> tuple[bytes, ...]:
        """Return the keys, as their file has them at present."""
        return self._keys()

    def check(self, text: str, job: str, now: float) -> None:
        """Check that a token is valid for a job.

        Args:
            text: The token.
            now: Seconds since 1970.

        Raises:
            UnauthorisedError: It is not.
        """
        token = Token.parse(text)
        if not any(hmac.compare_digest(_sign(key, token.payload), token.mac) for key in self.current()):
            raise UnauthorisedError("the token is not signed with a key of this service")
        if token.expires and now >= token.expires:
            raise UnauthorisedError(f"the token for job {token.job!r} has expired")
        if not hmac.compare_digest(token.job.encode(), job.encode()):
            raise UnauthorisedError(f"the token is for job {token.job!r}, not for {job!r}")


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


def _sign(key: bytes, payload: bytes) -> bytes:
    return hmac.digest(key, _PREFIX.encode() + payload, hashlib.sha256)


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    # Only one text for each value: no padding, no other alphabet, no stray bits.
    data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    if _encode(data) != text:
        raise ValueError
    return data
