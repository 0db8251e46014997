"""Arrivals of jobs at a cluster."""

from dataclasses import dataclass
from math import inf


@dataclass(frozen=True, slots=True)
class Arrival:
    """A job that a user submits.

    Attributes:
        name: Unlike any other job's.
        submitted: Seconds on the cluster's clock.
        application: Name of the model to train.
        devices: Number of devices that the user asks for, where the policy lets users ask.
        batch: Samples of the whole batch that the user asks for, where the policy lets users ask.
        priority: Weight, relative to other jobs', for policies that heed it.

    Raises:
        ValueError: The priority is not above 0, or not finite.
    """

    name: str
    submitted: int
    application: str
    devices: int
    batch: int
    priority: float = 1.0

    def __post_init__(self) -> None:
        """Check the priority."""
        if not 0 < self.priority < inf:
            raise ValueError(
                f"job {self.name!r} has the priority {self.priority}; it must be above 0 and finite"
            )
