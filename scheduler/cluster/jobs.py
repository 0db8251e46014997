"""The jobs of a live cluster: their states, and the devices that their workers have."""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

from scheduler.cluster.events import How, JobRequest

State: TypeAlias = Literal["waiting", "starting", "running", "suspending", "suspended", "ending", "ended"]
"""A job waits until its first device is free, and starts until its first worker is a member."""

_HOLDING = ("starting", "running", "suspending", "ending")
# Seconds until a node is tried again on which a worker did not start.
_FIRST_BACKOFF, _LONGEST_BACKOFF = 1.0, 60.0


@dataclass
class Lease:
    """A device of a node that a worker has, until it is seen to be gone."""

    node: str
    phase: Literal["starting", "running", "draining"] = "starting"


@dataclass
class LiveJob:
    """A job that was submitted."""

    request: JobRequest
    submitted: float  # seconds on the cluster's clock
    state: State = "waiting"
    held: bool = False  # by its user
    attempt: int = 0
    made: int = 0  # workers so far, whose names are never used again
    leases: dict[str, Lease] = field(default_factory=dict)  # by worker, the oldest first
    started: float | None = None
    ended: float | None = None
    how: How | None = None  # how it has ended, or is to end
    reason: str = ""
    attained: float = 0.0  # device-seconds
    backoffs: dict[str, float] = field(default_factory=dict)  # by node where none started: the last wait
    again: dict[str, float] = field(default_factory=dict)  # by node: when it is tried again
    facts: dict[str, Any] = field(default_factory=dict)  # as reported; not saved

    @property
    def has_processes(self) -> bool:
        """Return whether it has processes, or may have."""
        return self.state in _HOLDING

    @property
    def trains(self) -> bool:
        """Return whether it has been begun, and nothing ends it."""
        return self.state in ("starting", "running")

    @property
    def counts(self) -> bool:
        """Return whether a policy decides about it."""
        return not self.held and self.state not in ("ending", "ended")

    @property
    def kept(self) -> dict[str, Lease]:
        """Return the leases that are not on their way out."""
        return {worker: lease for worker, lease in self.leases.items() if lease.phase != "draining"}

    def back_off(self, node: str, now: float) -> None:
        """Note that a worker did not start on a node, which is tried again later each time."""
        before = self.backoffs.get(node)
        self.backoffs[node] = _FIRST_BACKOFF if before is None else min(2 * before, _LONGEST_BACKOFF)
        self.again[node] = now + self.backoffs[node]

    def forgive(self, node: str) -> None:
        """Note that a worker has started on a node, or that the node is gone."""
        self.backoffs.pop(node, None)
        self.again.pop(node, None)

    def drain_all(self) -> None:
        """Let all leases be on their way out."""
        for lease in self.leases.values():
            lease.phase = "draining"

    def saved(self) -> dict[str, Any]:
        """Return it as JSON can hold it."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "facts"}
        leases = {worker: [lease.node, lease.phase] for worker, lease in self.leases.items()}
        return fields | {"request": asdict(self.request), "leases": leases}

    @classmethod
    def restored(cls, saved: dict[str, Any]) -> "LiveJob":
        """Return the job that `saved` described."""
        leases = {worker: Lease(*lease) for worker, lease in saved["leases"].items()}
        return cls(**(saved | {"request": JobRequest(**saved["request"]), "leases": leases}))
