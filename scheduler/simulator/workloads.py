"""Arrivals of jobs at a cluster."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Arrival:
    """A job that a user submits.

    Attributes:
        name: Unlike any other job's.
        submitted: Seconds on the cluster's clock.
        application: Name of the model to train.
        devices: Number of devices that the user asks for, where the policy lets users ask.
        batch: Samples of the whole batch that the user asks for, where the policy lets users ask.
    """

    name: str
    submitted: int
    application: str
    devices: int
    batch: int
