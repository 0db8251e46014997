"""Effects of a job's events: what the manager has to do after each, as values."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from batchsize_manager.counters import JobTally
from batchsize_manager.job.state import JobState
from idl.plan import Assignment
from idl.records import IterationRecord

EVENTS = 200  # that a job keeps


class Over(NamedTuple):
    """The end of a job, in words, and whether it is one that it could not avoid."""

    why: str
    failed: bool


class Answer(NamedTuple):
    """The answer to a member that asks what to do; one of the first four has a value.

    Attributes:
        released: Why it is released.
        recover: The attempt that it has to recover with.
        assignment: Its next part.
        report_on: True if it is to go on with its reports: there is no other answer to this one yet.
        ahead: With lookahead, its parts after that one; else None.
        lost: Slices whose workers have gone without a report, of the reported iteration and later.
        continues: For a newcomer that is alone in a run that had begun, its first iteration that is not
            complete; else None.
        after_write: Whether it is given once all before it is written, since a manager that is started
            again must know of it; else at once.
    """

    released: str | None
    recover: int | None
    assignment: Assignment | None
    report_on: bool | None
    ahead: Sequence[Assignment] | None
    lost: Sequence[Assignment]
    continues: int | None
    after_write: bool


@dataclass(slots=True)
class Effects:
    """All that the manager has to do after an event of a job.

    Attributes:
        log: What happened, in words, each with the worker that it is about; None where it is about several
            or none.
        rewound: The iteration that the job goes on from, where it has gone back: records of that and later
            ones are void.
        completed: Records to keep, of the iterations that were completed, in that order.
        state: The state to keep, where it has changed. A job is kept from its start on: before that, its
            workers would join it again.
        learned: Whether to keep what the policy has learned: nobody is left who might add to it.
        over: Set if the job is over.
        answer: Whether there may be an answer now for members that wait; see `Job.answer`.
        fit: Whether the policy has seen something new, so that a fit may be due.
    """

    log: list[tuple[str, str | None]] = field(default_factory=list)
    rewound: int | None = None
    completed: list[IterationRecord] = field(default_factory=list)
    state: JobState | None = None
    learned: bool = False
    over: Over | None = None
    answer: bool = False
    fit: bool = False

    def __bool__(self) -> bool:
        done = self.log or self.completed or self.state or self.over or self.answer or self.fit
        return bool(done or self.learned or self.rewound is not None)


class Outbox:
    """The effects of a job's events until they are taken.

    Attributes:
        effects: What has been collected since the last `take`.
        changed: Whether the job's state has changed since then, so that it has to be kept again.
        keeps_state: Whether the state is among the effects; where a manager keeps none, that saves
            milliseconds for each of thousands of members that leave.
        events: The last things that happened, in words.
        tally: Counts of what happened, for metrics.
    """

    def __init__(self) -> None:
        self.effects = Effects()
        self.changed = False
        self.keeps_state = True
        self.events: deque[str] = deque(maxlen=EVENTS)
        self.tally = JobTally()

    def log(self, event: str, worker: str | None = None) -> None:
        """Add something that happened, in words; whatever is logged changes what has to be kept."""
        self.events.append(event)
        self.effects.log.append((event, worker))
        self.changed = True

    def complete(self, record: IterationRecord) -> None:
        """Add the record of an iteration that is complete."""
        self.tally.complete(record)
        self.effects.completed.append(record)

    def rewind(self, iteration: int) -> None:
        """Add that the job goes on from an iteration."""
        self.effects.rewound = iteration
        self.effects.completed = [done for done in self.effects.completed if done.iteration < iteration]
        self.effects.answer = True

    def take(self) -> Effects:
        """Return what has been collected, and begin again."""
        effects = self.effects
        if effects:  # most reports have none, of thousands in a round
            self.effects = Effects()
        return effects
