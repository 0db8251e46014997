"""What happens to a job that its manager is to remember, as values; nothing here knows files or threads.

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
        run: Drawn for it; no other has it.
        job: Its name.
        spec: What is trained on.
        policy: By which batches are split at first.
        mode: How members wait for each other; see `Synchronisation`.
        first_iteration: Where it begins.
        position: Epoch and first position of that iteration's batch, where the iteration does not tell.
        at: When, in seconds since 1970.
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
class Members:
    """How things stand from now on.

    Attributes:
        run: As above.
        attempt: That the job is in.
        members: Who is in it, in the order of their slices.
        batch_changes: Where the size of its batches has changed, if it does.
    """

    run: str
    attempt: int
    members: Sequence[SavedMember]
    batch_changes: Sequence[BatchChange] = ()


@dataclass(frozen=True, slots=True)
class Controlled:
    """What operators want of a job, all in all.

    Attributes:
        run: As above.
        balancing: How batches are split; None: as the manager was told.
        batch_size: Samples of a whole batch; None: as the job's specification has it.
        paused: Whether nothing more is planned.
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
    """The job goes on from an iteration: what was known of that and later ones does not hold."""

    run: str
    iteration: int


@dataclass(frozen=True, slots=True)
class Said:
    """An event, in words; `at` in seconds since 1970."""

    run: str
    event: str
    at: float


@dataclass(frozen=True, slots=True)
class Learnt:
    """What the policy has learnt."""

    run: str
    models: Models


@dataclass(frozen=True, slots=True)
class Ended:
    """The job is over: why, and when, in seconds since 1970."""

    run: str
    why: str
    at: float


Change = Begun | Members | Controlled | Completed | Rewound | Said | Learnt | Ended


def weight(change: Change) -> int:
    """How much memory a change takes, in records of one worker's iteration."""
    return 1 + len(change.record.workers) if isinstance(change, Completed) else 1


def compact(changes: Sequence[Change]) -> list[Change]:
    """The same changes without those that later ones make void: of some kinds, the last counts."""
    seen: set[tuple[type, str]] = set()
    kept: list[Change] = []
    for change in reversed(changes):
        if isinstance(change, Members | Controlled | Learnt):
            if (type(change), change.run) in seen:
                continue
            seen.add((type(change), change.run))
        kept.append(change)
    return kept[::-1]
