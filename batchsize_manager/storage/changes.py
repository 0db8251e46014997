"""Changes of a job that its manager keeps, as values; nothing here knows files or threads.

A *run* is one life of a job: a job that is started again under its old name is another run.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from batchsize_manager.balancing import Balancing
from batchsize_manager.job.batch_sizes import BatchChange
from batchsize_manager.job.members import SavedMember
from idl.plan import JobSpec
from idl.records import IterationRecord
from predictors import Models


@dataclass(frozen=True, slots=True)
class Begun:
    """A job was created.

    Attributes:
        run: The run's id, which no other run has.
        job: The job's name.
        spec: The data set and the batches.
        policy: Name of the first balancing policy.
        mode: Mode of synchronisation; see `Synchronisation`.
        first_iteration: Number of the first iteration.
        position: Epoch and first position of that iteration's batch, where its number does not give them.
        at: Time in seconds since 1970.
    """

    run: str
    job: str
    spec: JobSpec
    policy: str
    mode: str
    first_iteration: int
    position: tuple[int, int] | None
    at: float


@dataclass(frozen=True, slots=True)
class MembersChanged:
    """The members and the attempt from now on.

    Attributes:
        run: The run's id.
        attempt: The present attempt.
        members: The members, in the order of their slices.
        batch_changes: Changes of the size of its batches, if any.
    """

    run: str
    attempt: int
    members: Sequence[SavedMember]
    batch_changes: Sequence[BatchChange] = ()


@dataclass(frozen=True, slots=True)
class Controlled:
    """The sum of operators' changes to a job.

    Attributes:
        run: The run's id.
        balancing: The way in which batches are split; None: the manager's own.
        batch_size: Samples of a whole batch; None: that of the job's specification.
        paused: Whether the job is paused: no further iteration is planned.
    """

    run: str
    balancing: Balancing | None = None
    batch_size: int | None = None
    paused: bool = False


@dataclass(frozen=True, slots=True)
class Completed:
    """An iteration is complete; `at` in seconds since 1970."""

    run: str
    record: IterationRecord
    at: float


@dataclass(frozen=True, slots=True)
class Rewound:
    """The job goes on from an iteration: records of that and later ones are void."""

    run: str
    iteration: int


@dataclass(frozen=True, slots=True)
class Logged:
    """An event of a job, in words; `at` in seconds since 1970."""

    run: str
    event: str
    at: float


@dataclass(frozen=True, slots=True)
class Learnt:
    """The models that the policy has learned."""

    run: str
    models: Models


@dataclass(frozen=True, slots=True)
class Ended:
    """The job is over, and why; `at` in seconds since 1970."""

    run: str
    why: str
    at: float


Change = Begun | MembersChanged | Controlled | Completed | Rewound | Logged | Learnt | Ended


def weight(change: Change) -> int:
    """Return the memory that a change takes, in records of one worker's iteration."""
    return 1 + len(change.record.workers) if isinstance(change, Completed) else 1


def compact(changes: Sequence[Change]) -> list[Change]:
    """Return the changes without those that later ones make void: of some kinds, only the last counts."""
    seen: set[tuple[type, str]] = set()
    kept: list[Change] = []
    for change in reversed(changes):
        if isinstance(change, MembersChanged | Controlled | Learnt):
            if (type(change), change.run) in seen:
                continue
            seen.add((type(change), change.run))
        kept.append(change)
    return kept[::-1]
