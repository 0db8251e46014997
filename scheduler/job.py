"""A job as a scheduler sees it: what its user asked for, what it has had, and what is known of its speed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from scheduler.goodput import Goodput


@dataclass(frozen=True, slots=True)
class Job:
    """A job that has been submitted and has not ended, at one moment.

    Attributes:
        seconds_left: Seconds until it ends on a number of devices of one kind, packed on as few nodes as
            possible, for policies that are told so (an oracle); None where nobody knows.
        iterations_per_second: Speed on devices of a kind, with the devices and the batch that its user asked
            for, packed likewise; None where nobody knows.
    """

    name: str  # unlike any other job's
    submitted: float  # when it was submitted, in seconds on the cluster's clock
    age: float  # seconds since then
    most_devices: int  # the most that it can use now
    weight: float = 1.0  # share of the cluster, relative to other jobs', above 0; in VirtualFlow its priority
    attained: float = 0.0  # device-seconds that it has had, the pauses after changes among them
    restarts: int = 0  # how often its allocation was changed since it first started
    restart_cost: float = 30.0  # seconds that a change of its allocation is taken to cost
    paused: bool = False  # whether it has devices, and the pause after the last change is not over
    devices: int | None = None  # the number that its user asked for; None where the scheduler chooses
    # Samples of the whole batch that its user asked for; None where it follows from the goodput.
    batch: int | None = None
    # What its training gains by devices, by kind; without kinds of which nothing is known yet.
    goodputs: Mapping[str, Goodput] = field(default_factory=dict)
    # Samples per second on one device, by kind, as far as known; only their ratios count.
    speeds: Mapping[str, float] = field(default_factory=dict)
    seconds_left: Callable[[int], float] | None = None
    iterations_per_second: Callable[[str], float] | None = None
