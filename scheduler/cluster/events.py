"""What a cluster's machine is told, and what it asks for: values only.

An executor may tell an event twice, late, or after its machine was started again; it may be asked for an
action again, and must then do nothing new. Events and actions name the attempt of a job that they are about:
the number of times that its processes were begun.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from scheduler.allocation import Placement
from scheduler.nodes import Node
from scheduler.policies.base import Round

How: TypeAlias = Literal["done", "failed", "cancelled"]
"""How a job has ended."""


@dataclass(frozen=True, slots=True)
class JobRequest:
    """What a user asks for.

    Raises:
        ValueError: The job has no name, no device, or a weight that is not above 0.
    """

    name: str  # unlike that of any job that has not ended
    devices: int  # the most that it can use
    weight: float = 1.0  # share of the cluster, relative to other jobs'
    batch: int | None = None  # samples of the whole batch; None where it follows from the goodput
    work: Mapping[str, Any] = field(default_factory=dict)  # the executor's own, as JSON can hold it
    owner: str = ""  # the user whose job it is; empty for operators'

    def __post_init__(self) -> None:
        """Check name, devices and weight."""
        if not self.name:
            raise ValueError("a job needs a name")
        if self.devices < 1:
            raise ValueError(f"job {self.name!r} asks for {self.devices} devices: at least 1 is needed")
        if not 0 < self.weight < float("inf"):
            raise ValueError(f"job {self.name!r} has the weight {self.weight}: must be above 0")


# -- events


@dataclass(frozen=True, slots=True)
class Submitted:
    """A user submits a job."""

    request: JobRequest
    attempt: int = 0  # the last one of an earlier job of this name that it goes on with; 0 for none


@dataclass(frozen=True, slots=True)
class Cancelled:
    """A user ends a job."""

    job: str


@dataclass(frozen=True, slots=True)
class Held:
    """A user takes a job out of what is decided about, or has it decided about again."""

    job: str
    held: bool


@dataclass(frozen=True, slots=True)
class PolicyChanged:
    """Another policy decides from now on."""

    interval: float  # seconds between two of its rounds
    by_rounds: bool = False  # whether it counts time in rounds, and so is asked at no other moment


@dataclass(frozen=True, slots=True)
class NodeJoined:
    """A node is there."""

    node: Node


@dataclass(frozen=True, slots=True)
class NodeLeaving:
    """A node will go: what is there moves, and nothing more is placed on it."""

    node: str


@dataclass(frozen=True, slots=True)
class NodeLost:
    """A node is gone with all its processes."""

    node: str


@dataclass(frozen=True, slots=True)
class WorkerJoined:
    """A worker is a member of its job; that its process runs is not enough."""

    job: str
    attempt: int
    worker: str


@dataclass(frozen=True, slots=True)
class WorkerGone:
    """A worker's processes are gone for good, and its device is free."""

    job: str
    attempt: int
    worker: str
    finished: bool = False  # whether it has trained to the end


@dataclass(frozen=True, slots=True)
class Suspended:
    """A job's state is on disk, and none of its processes is left."""

    job: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Ended:
    """A job has ended by itself or by `End`, and none of its processes is left."""

    job: str
    attempt: int
    how: How
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Reported:
    """What is known of a job's training by now; it is not saved, so it has to come again after a restart."""

    job: str
    facts: Mapping[str, Any]  # fields of `scheduler.job.Job`


@dataclass(frozen=True, slots=True)
class Decided:
    """A policy's answer."""

    number: int  # of the question
    placements: Mapping[str, Placement] | None  # by job; None where the policy failed
    error: str = ""


@dataclass(frozen=True, slots=True)
class Tick:
    """The time has come that the machine has named."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """The machine was restored from what was saved; this is what exists."""

    nodes: tuple[Node, ...]
    workers: tuple[tuple[str, int, str, str], ...]  # job, attempt, worker and node of each that has processes


Event: TypeAlias = (
    Submitted
    | Cancelled
    | Held
    | PolicyChanged
    | NodeJoined
    | NodeLeaving
    | NodeLost
    | WorkerJoined
    | WorkerGone
    | Suspended
    | Ended
    | Reported
    | Decided
    | Tick
    | Recovered
)

# -- actions


@dataclass(frozen=True, slots=True)
class Decide:
    """Ask the policy, without a wait for it; `Decided` of the same number is the answer."""

    number: int
    round: Round


@dataclass(frozen=True, slots=True)
class Begin:
    """Start a job's services, from its state if there is one.

    `Ended` or `Suspended` is the answer if this attempt has ended already.
    """

    job: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Add:
    """Start a worker on a node, and keep it running there until `Drain`."""

    job: str
    attempt: int
    worker: str
    node: str


@dataclass(frozen=True, slots=True)
class Drain:
    """Release a worker once it has computed what it was given, or do not start it."""

    job: str
    attempt: int
    worker: str


@dataclass(frozen=True, slots=True)
class Suspend:
    """Pause a job at an iteration's end, keep its state, and end its processes."""

    job: str
    attempt: int


@dataclass(frozen=True, slots=True)
class End:
    """End a job that its user has cancelled."""

    job: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Say:
    """Tell whoever follows."""

    text: str


Action: TypeAlias = Decide | Begin | Add | Drain | Suspend | End | Say
