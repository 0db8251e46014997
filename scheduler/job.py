"""A job as a scheduler sees it: what its user asked for, what it has had, and what is known of its speed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from scheduler.goodput import Goodput


@dataclass(frozen=True, slots=True)
class Job:
    """A job that has been submitted and has not ended, at one moment.

    Attributes:
        name: Unlike any other job's.
        submitted: When it was submitted, in seconds on the cluster's clock.
        age: Seconds since then.
        weight: Share of the cluster, relative to other jobs', above 0; in VirtualFlow its priority.
        attained: Device-seconds that it has had, the pauses after changes among them.
        restarts: How often its allocation was changed since it first started.
        restart_cost: Seconds that a change of its allocation is taken to cost.
        paused: Whether it has devices, and the pause after the last change is not over.
        most_devices: The most that it can use now.
        devices: The number that its user asked for; None where the scheduler chooses.
        batch: Samples of the whole batch that its user asked for; None where it follows from the goodput.
        goodputs: What its training gains by devices, by kind; without kinds of which nothing is known yet.
        speeds: Samples per second on one device, by kind, as far as known; only their ratios count.
        seconds_left: Seconds until it ends on a number of devices of one kind, packed on as few nodes as
            possible, for policies that are told so (an oracle); None where nobody knows.
        iterations_per_second: Speed on devices of a kind, with the devices and the batch that its user asked
            for, packed likewise; None where nobody knows.
    """

    name: str
    submitted: float
    age: float
    most_devices: int
    weight: float = 1.0
    attained: float = 0.0
    restarts: int = 0
    restart_cost: float = 30.0
    paused: bool = False
    devices: int | None = None
    batch: int | None = None
    goodputs: Mapping[str, Goodput] = field(default_factory=dict)
    speeds: Mapping[str, float] = field(default_factory=dict)
    seconds_left: Callable[[int], float] | None = None
    iterations_per_second: Callable[[str], float] | None = None
