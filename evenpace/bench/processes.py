"""Starts the servers that a benchmark puts under load."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator

from evenpace.cluster import LISTENING, end_process
from rpc.address import Address
from rpc.errors import UnavailableError


@contextlib.contextmanager
def server(module: str, *arguments: str) -> Iterator[Address]:
    """Run `python -m MODULE ARGUMENTS`, which prints where it listens, and end it afterwards."""
    popen = subprocess.Popen(
        [sys.executable, "-m", module, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    )
    try:
        assert popen.stdout is not None
        line = popen.stdout.readline().decode()
        if not line.startswith(LISTENING):
            raise UnavailableError(f"{module} did not start; it said {line!r}")
        yield Address.parse(line.removeprefix(LISTENING).strip())
    finally:
        end_process(popen)
        if popen.stdout is not None:
            popen.stdout.close()
