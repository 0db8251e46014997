"""What checks find, and what they are told to look at."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal, get_args

from rpc.address import Address
from rpc.credentials import Credentials

Level = Literal["ok", "note", "warning", "problem"]
LEVELS: tuple[Level, ...] = get_args(Level)  # from what is well to what must be mended

MIB, GIB = 2**20, 2**30


@dataclass(frozen=True)
class Finding:
    """One thing that a check has found.

    Attributes:
        level: `ok`; `note`, good to know; `warning`, may cost speed or safety; `problem`, does not work.
        subject: What it is about, in a word or two.
        found: What was found.
        advice: What to do; empty where there is nothing to be done.

    Raises:
        ValueError: A warning or a problem leaves its reader without advice.
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
    """What is looked at.

    Attributes:
        manager: A manager to call; None for none.
        shards: Shards to call.
        partitions: A DataPartitionManager to call; None for none.
        state: A folder for `--state`.
        credentials: For calls.
        timeout: Seconds for each step of a call.
        root: Below which `/proc`, `/sys` and `/dev` are looked up.
        ports: Of this machine, which services will want to listen on.

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
    """Bytes, in words."""
    for unit, name in ((2**40, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (2**10, "KiB")):
        if count >= unit:
            return f"{count / unit:.3g} {name}" if count < 1000 * unit else f"{count / unit:.0f} {name}"
    return f"{count:.0f} bytes"


def milliseconds(seconds: float) -> str:
    """Seconds, as milliseconds in words."""
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds * 1e3:.0f} ms"
