"""Certificates for the time of a benchmark."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rpc.certificates import create_authority, issue
from rpc.credentials import Credentials


@contextlib.contextmanager
def for_loopback() -> Iterator[tuple[Credentials, list[str]]]:
    """Yield a client's credentials for TLS on loopback, and the options that a service needs for it."""
    with tempfile.TemporaryDirectory(prefix="evenpace-bench-") as folder:
        create_authority(Path(folder), 1)
        issue(Path(folder), "both", ["127.0.0.1"], 1)
        both = Path(folder) / "both"
        yield Credentials.of_folder(both), ["--tls", str(both)]
