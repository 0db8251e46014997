"""How a Ray cluster is shared: values that check themselves. They need no Ray."""

from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Annotated, Self

from idl.settings import Setting, check_settings
from scheduler.ray.submission import STORAGE, Submission

FOLDER = "_cluster"
"""Folder of the scheduler in the storage; no job has such a name."""

LIVE_POLICIES = ("weighted_fair_sharing", "priority", "tiresias")
"""Policies that need to know no more of a job than its weight, its number of devices, and what it has had."""


@dataclass(frozen=True)
class Device:
    """What counts as a device: an amount of one of Ray's resources, which each worker takes.

    Raises:
        ValueError: The resource has no name, or its amount is not above 0.
    """

    resource: str  # Ray's name, such as CPU or GPU
    amount: float = 1.0

    def __post_init__(self) -> None:
        if not self.resource or not 0 < self.amount < inf:
            raise ValueError(f"device {self}: must be a resource of Ray, and an amount above 0")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read "GPU", or "CPU=4" where a device is four of them (ValueError: it is neither)."""
        resource, equals, amount = text.partition("=")
        try:
            return cls(resource, float(amount) if equals else 1.0)
        except ValueError as error:
            raise ValueError(f"device {text!r}: must be RESOURCE, or RESOURCE=AMOUNT above 0") from error

    def __str__(self) -> str:
        return self.resource if self.amount == 1 else f"{self.resource}={self.amount:g}"

    def taken_by(self, submission: Submission) -> Submission:
        """Return a job each of whose workers takes one device."""
        cpus, gpus = (self.amount if self.resource == name else 0.0 for name in ("CPU", "GPU"))
        further = {} if cpus or gpus else {self.resource: self.amount}
        return replace(
            submission,
            cpus_per_worker=cpus,
            gpus_per_worker=gpus,
            resources_per_worker={**submission.resources_per_worker, **further},
        )


@dataclass(frozen=True)
class ClusterSettings:
    """How a cluster is shared.

    Raises:
        ValueError: A value is not allowed.
    """

    policy: Annotated[
        str | None,
        Setting(
            "Which devices each job has.  [default: weighted_fair_sharing, or as before]",
            choices=LIVE_POLICIES,
        ),
    ] = None
    device: Annotated[
        Device,
        Setting(
            "What each worker has, and is given out as a whole.",
            read=Device.parse,
            metavar="RESOURCE[=AMOUNT]",
        ),
    ] = Device("CPU")
    interval: Annotated[
        float,
        Setting("Seconds after which the policy is asked though nothing has changed.", above=0, below=inf),
    ] = 60.0
    storage: Annotated[
        Path,
        Setting(
            "Keep jobs, and what is decided, in this folder, on a disk that all nodes share. What another "
            "scheduler has left there goes on.",
            folder=True,
        ),
    ] = STORAGE
    token_keys: Annotated[
        Path | None,
        Setting(
            "Ask all who call for a token that is signed with a key of this file; see `evenpace token`.",
            name="token-key",
            folder=False,
        ),
    ] = None

    def __post_init__(self) -> None:
        check_settings(self)
