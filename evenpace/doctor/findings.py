"""The findings of checks, and the subject that checks look at."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal, get_args

from rpc.address import Address
from rpc.credentials import Credentials

Level = Literal["ok", "note", "warning", "problem"]
LEVELS: tuple[Level, ...] = get_args(Level)  # the worst last

MIB, GIB = 2**20, 2**30


@dataclass(frozen=True)
class Finding:
    """One finding of a check.

    Attributes:
        level: `ok`; `note`, good to know; `warning`, may cost speed or safety; `problem`, does not work.
        subject: Its subject, in a word or two.
        found: The finding itself.
        advice: Advice on what to do; empty where there is nothing to do.

    Raises:
        ValueError: A warning or a problem has no advice, or the level is unknown.
    """

    level: Level
    subject: str
    found: str
    advice: str = ""

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            raise ValueError(f"level {self.level!r}: must be one of {', '.join(LEVELS)}")
        if self.level in ("warning", "problem") and not self.advice:
            raise ValueError(f"{self.level} about {self.subject!r}: must say what to do")


ok = partial(Finding, "ok")
note = partial(Finding, "note")
warning = partial(Finding, "warning")
problem = partial(Finding, "problem")


@dataclass(frozen=True)
class Subject:
    """The machine and the services to check.

    Attributes:
        manager: Address of a manager, if any.
        shards: Addresses of shards.
        partitions: Address of a DataPartitionManager, if any.
        state: Folder for `--state`, if any.
        credentials: Certificate and token for calls.
        timeout: Seconds for each step of a call.
        root: Folder with `/proc`, `/sys` and `/dev`.
        ports: Ports of this machine that services will listen on.

    Raises:
        ValueError: The timeout is not above 0.
    """

    manager: Address | None = None
    shards: tuple[Address, ...] = ()
    partitions: Address | None = None
    state: Path | None = None
    credentials: Credentials = field(default_factory=Credentials)
    timeout: float = 2.0
    root: Path = Path("/")
    ports: tuple[int, ...] = (4300, 4400)

    def __post_init__(self) -> None:
        if not self.timeout > 0:
            raise ValueError(f"timeout {self.timeout!r}: must be above 0 seconds")


Check = Callable[[Subject], Iterable[Finding]]


def size(count: float) -> str:
    """Return a number of bytes with its unit, to three digits."""
    for unit, name in ((2**40, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (2**10, "KiB")):
        if count >= unit:
            return f"{count / unit:.3g} {name}" if count < 1000 * unit else f"{count / unit:.0f} {name}"
    return f"{count:.0f} bytes"


def milliseconds(seconds: float) -> str:
    """Return seconds as milliseconds with the unit."""
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds * 1e3:.0f} ms"
