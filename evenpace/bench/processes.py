"""Starts the servers that a benchmark puts under load."""

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator

from evenpace.cluster import LISTENING, end_process
from rpc.address import Address
from rpc.errors import UnavailableError


@contextlib.contextmanager
def server(module: str, *arguments: str) -> Iterator[Address]:
    """Run `python -m MODULE ARGUMENTS`, which prints where it listens, and end it afterwards."""
    with tempfile.TemporaryFile() as log:
        popen = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
        )
        try:
            assert popen.stdout is not None
            line = popen.stdout.readline().decode()
            if not line.startswith(LISTENING):
                log.seek(0)
                raise UnavailableError(f"{module} did not start: {log.read().decode(errors='replace')}")
            yield Address.parse(line.removeprefix(LISTENING).strip())
        finally:
            end_process(popen)
            if popen.stdout is not None:
                popen.stdout.close()
