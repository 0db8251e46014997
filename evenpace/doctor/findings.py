"""The findings of checks, and the subject that checks look at."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, get_args

from idl.settings import Checked, Setting
from rpc.credentials import Credentials
from rpc.places import Where
from scheduler.ray.submission import STORAGE

Level = Literal["ok", "note", "warning", "problem"]
LEVELS: tuple[Level, ...] = get_args(Level)  # the worst last

MIB, GIB = 2**20, 2**30


@dataclass(frozen=True)
class Finding:
    """One finding of a check (ValueError: a warning or a problem has no advice, or the level is unknown)."""

    level: Level  # `ok`; `note`, good to know; `warning`, may cost speed or safety; `problem`, does not work
    subject: str  # its subject, in a word or two
    found: str  # the finding itself
    advice: str = ""  # advice on what to do; empty where there is nothing to do

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            raise ValueError(f"level {self.level!r}: must be one of {', '.join(LEVELS)}")
        if self.level in ("warning", "problem") and not self.advice:
            raise ValueError(f"{self.level} about {self.subject!r}: must say what to do")


ok = partial(Finding, "ok")
note = partial(Finding, "note")
warning = partial(Finding, "warning")
problem = partial(Finding, "problem")


def judged(subject: str, found: str, *, fine: bool, advice: str, level: Level = "warning") -> Finding:
    """Return a finding without advice where it is fine, else one of a level with the advice."""
    return ok(subject, found) if fine else Finding(level, subject, found, advice)


@dataclass(frozen=True)
class Subject(Checked):
    """The machine and the services to check (ValueError: the timeout is not above 0)."""

    manager: Annotated[Where | None, Setting("A BatchSizeManager to call.")] = None
    shards: Annotated[tuple[Where, ...], Setting("A shard to call; may be repeated.", name="ps")] = ()
    partitions: Annotated[Where | None, Setting("A DataPartitionManager to call.")] = None
    ray: Annotated[
        str | None, Setting('A Ray cluster to look at, HOST:PORT, or "auto" for the one on this machine.')
    ] = None
    # For the jobs of a Ray cluster.
    storage: Annotated[
        Path,
        Setting("With --ray: where jobs are to have their folders. A file is written there for a moment."),
    ] = STORAGE
    # For a service's `--state`.
    state: Annotated[
        Path | None,
        Setting("A folder that a service is to keep its state in. A file is written there for a moment."),
    ] = None
    credentials: Credentials = field(default_factory=Credentials)  # for calls
    timeout: Annotated[float, Setting("Seconds for each step of a call.", above=0)] = 2.0
    root: Path = Path("/")  # below which `/proc`, `/sys` and `/dev` are looked up
    ports: tuple[int, ...] = (4300, 4400)  # of this machine, which services will want to listen on


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
