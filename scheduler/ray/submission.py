"""A job for a Ray cluster, as it is submitted: a value that checks itself. It needs no Ray."""

import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Self

from idl.settings import Setting, check_settings

MANAGER = "manager"
STORAGE = Path("~/evenpace_results")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True)
class Scale:
    """The number of workers with which a job starts, and the most that it uses.

    Raises:
        ValueError: A number is below 1, or they are in the wrong order.
    """

    least: int
    most: int

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise ValueError(f"workers {self}: must be a number from 1 on, or LEAST:MOST")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read "4", or "2:8" for a job that starts with two workers and uses up to eight.

        Raises:
            ValueError: It is neither.
        """
        parts = text.split(":")
        if len(parts) > 2 or not all(part.isascii() and part.isdecimal() for part in parts):
            raise ValueError(f"workers {text!r}: must be a number from 1 on, or LEAST:MOST")
        return cls(int(parts[0]), int(parts[-1]))

    def __str__(self) -> str:
        return str(self.most) if self.least == self.most else f"{self.least}:{self.most}"


@dataclass(frozen=True)
class Submission:
    """A job for a Ray cluster.

    Attributes:
        script: The training script; relative to `working_dir`, where there is one.
        arguments: The script's arguments.
        name: The job's name, unique in the cluster; None while it is to be chosen.
        workers: The number of workers.
        resources_per_worker: Further resources of Ray that each worker takes, by name.
        resources_per_service: Resources of Ray that each service takes, by name; none by default, so that
            they fit beside workers that take all CPUs.
        shards: Shards of the parameter server; 0 where the workers reduce gradients among themselves.
        fixed_group: Whether these are then a group of `torch.distributed` that the script makes, by the
            variables that torchrun sets; otherwise the manager forms their groups, as workers come and go.
        storage: The folder in which the job's own folder is, with its logs and the state of its services; its
            path is absolute, where a job is submitted.
        manager_options, shard_options, worker_options: More options of `evenpace manager`, `ps` and `worker`.
        environment: Variables added to those of the workers.
        owner: The user of a shared cluster whose job it is; empty elsewhere, and for an operator's.
        files: Files by name that each worker finds in a folder of its own; `script` may be one of them.

    Raises:
        ValueError: A value is not allowed.
    """

    script: Path = Path("train.py")
    arguments: tuple[str, ...] = ()
    name: Annotated[str | None, Setting("The job's name.  [default: the script's, and the time]")] = None
    workers: Annotated[
        Scale,
        Setting(
            "Workers; LEAST:MOST starts with LEAST, and uses up to MOST as nodes come.",
            read=Scale.parse,
            metavar="N|LEAST:MOST",
        ),
    ] = Scale(1, 1)
    cpus_per_worker: Annotated[float, Setting("CPUs that Ray sets aside for each.", least=0)] = 1.0
    gpus_per_worker: Annotated[float, Setting("GPUs that Ray sets aside for each.", least=0)] = 0.0
    resources_per_worker: Mapping[str, float] = field(default_factory=dict)
    resources_per_service: Mapping[str, float] = field(default_factory=dict)
    shards: Annotated[int, Setting("Shards of the parameter server.", least=0)] = 1
    fixed_group: bool = False
    storage: Annotated[
        Path,
        Setting(
            "Keep logs and the services' state in the folder DIR/NAME. To outlive the loss of a node, it "
            "must be on a disk that all nodes share.",
            folder=True,
        ),
    ] = STORAGE
    resume: Annotated[bool, Setting("Go on with the job of this name that did not finish.")] = False
    max_failures: Annotated[
        int, Setting("Workers that may fail, and are started again, before the job fails.", least=0)
    ] = 3
    start_timeout: Annotated[
        float, Setting("Seconds that the job may wait for nodes before it starts.", above=0, below=math.inf)
    ] = 600.0
    manager_options: tuple[str, ...] = ()
    shard_options: tuple[str, ...] = ()
    worker_options: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    owner: str = ""
    files: Mapping[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_settings(self)
        if self.name is not None and not _NAME.fullmatch(self.name):
            raise ValueError(
                f"job {self.name!r}: must be 1 to 63 letters, digits, dots, hyphens and underscores"
            )
        for of, amounts in (("worker", self.resources_per_worker), ("service", self.resources_per_service)):
            for name, amount in amounts.items():
                if not 0 <= amount < math.inf:
                    raise ValueError(f"resource {name} of each {of}: {amount}: must be a number from 0 on")
        if self.fixed_group and not self.all_reduce:
            raise ValueError("a fixed group: only with all-reduce, and not with shards of a parameter server")
        if self.fixed_group and self.workers.least != self.workers.most:
            raise ValueError(f"workers {self.workers}: must be one number where their group is fixed")

    @property
    def all_reduce(self) -> bool:
        """Return whether the workers reduce gradients among themselves."""
        return self.shards == 0

    @property
    def services(self) -> tuple[str, ...]:
        """Return the names of the services, the manager first."""
        return (MANAGER, *(f"ps-{number}" for number in range(self.shards)))

    @property
    def folder(self) -> Path:
        """Return the job's own folder."""
        return self.storage / self.job

    @property
    def kept(self) -> Path:
        """Return the folder for the state of workers that reduce gradients among themselves."""
        return self.folder / "kept"

    @property
    def job(self) -> str:
        """Return the job's name, which must have been chosen."""
        assert self.name is not None
        return self.name

    @property
    def cpus(self) -> int:
        """Return the number of CPUs that all workers take together, in whole ones; at least one."""
        return max(1, math.ceil(self.workers.most * self.cpus_per_worker))

    def worker(self, number: int) -> str:
        """Return the name of a worker, from its number."""
        return f"w{number}"


def name_now(of: str) -> str:
    """Return a name for a job that was given none: what it is of, and the time."""
    return f"{of}-{time.strftime('%Y%m%d-%H%M%S')}"
