"""Arrivals of jobs at a cluster."""

from dataclasses import dataclass
from math import inf


@dataclass(frozen=True, slots=True)
class Arrival:
    """A job that a user submits (ValueError: the priority is not above 0, or not finite)."""

    name: str  # unlike any other job's
    submitted: int  # seconds on the cluster's clock
    application: str  # name of the model to train
    devices: int  # number of devices that the user asks for, where the policy lets users ask
    batch: int  # samples of the whole batch that the user asks for, where the policy lets users ask
    priority: float = 1.0  # weight, relative to other jobs', for policies that heed it

    def __post_init__(self) -> None:
        if not 0 < self.priority < inf:
            raise ValueError(
                f"job {self.name!r} has the priority {self.priority}; it must be above 0 and finite"
            )
