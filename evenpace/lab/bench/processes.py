"""Starts the servers that a benchmark puts under load."""

import contextlib
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from evenpace.processes import LISTENING, end_process
from idl.errors import UnavailableError
from rpc.address import Address


@dataclass(frozen=True)
class Served:
    """A server that runs.

    Attributes:
        address: Where it listens.
        popen: Its process.
    """

    address: Address
    popen: "subprocess.Popen[bytes]"


@contextlib.contextmanager
def server(module: str, *arguments: str) -> Iterator[Address]:
    """Run `python -m MODULE ARGUMENTS`, which prints where it listens, and end it afterwards."""
    with served(module, *arguments) as running:
        yield running.address


@contextlib.contextmanager
def served(
    module: str, *arguments: str, log: Path | None = None, prefix: Sequence[str] = ()
) -> Iterator[Served]:
    """Likewise, with the process itself.

    Args:
        module: To run.
        arguments: Its.
        log: Where what it logs goes; None for nowhere.
        prefix: A command to start it through, which becomes it, such as `nsenter`.
    """
    with log.open("w+b") if log else tempfile.TemporaryFile() as stream:
        popen = subprocess.Popen(
            [*prefix, sys.executable, "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stream,
        )
        try:
            assert popen.stdout is not None
            line = popen.stdout.readline().decode()
            if not line.startswith(LISTENING):
                stream.seek(0)
                raise UnavailableError(f"{module} did not start: {stream.read().decode(errors='replace')}")
            yield Served(Address.parse(line.removeprefix(LISTENING).strip()), popen)
        finally:
            end_process(popen)
            if popen.stdout is not None:
                popen.stdout.close()


def allow_files(count: int) -> int:
    """Raise this process's limit of open files, and so that of what it starts, as far as need be and allowed.

    Returns:
        The limit in force; it is below `count` where no more are allowed.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    if soft != unlimited and soft < count:
        soft = count if hard == unlimited else min(count, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return count if soft == unlimited else soft
