"""Changes of a job that its manager keeps, as values; nothing here knows files or threads.

A *run* is one life of a job: a job that is started again under its old name is another run.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from batchsize_manager.job.state import JobState
from idl.records import IterationRecord
from predictors import Models


@dataclass(frozen=True, slots=True)
class Begun:
    """A job has begun."""

    run: str  # the run's id, which no other run has
    job: str  # the job's name
    policy: str  # name of the policy that splits its batches, unless its state has another
    state: JobState  # the job's state
    at: float  # time in seconds since 1970


@dataclass(frozen=True, slots=True)
class Saved:
    """The state of a job from now on."""

    run: str
    state: JobState


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
class Learned:
    """The models that the policy has learned."""

    run: str
    models: Models


@dataclass(frozen=True, slots=True)
class Ended:
    """The job is over, and why; `at` in seconds since 1970."""

    run: str
    why: str
    at: float


Change = Begun | Saved | Completed | Rewound | Logged | Learned | Ended


def weight(change: Change) -> int:
    """Return the memory that a change takes, in records of one worker's iteration."""
    return 1 + len(change.record.workers) if isinstance(change, Completed) else 1


def compact(changes: Sequence[Change]) -> list[Change]:
    """Return the changes without those that later ones make void: of some kinds, only the last counts."""
    seen: set[tuple[type, str]] = set()
    kept: list[Change] = []
    for change in reversed(changes):
        if isinstance(change, Saved | Learned):
            if (type(change), change.run) in seen:
                continue
            seen.add((type(change), change.run))
        kept.append(change)
    return kept[::-1]
