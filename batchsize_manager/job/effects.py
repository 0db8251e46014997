"""Effects of a job's events: what the manager has to do after each, as values."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from batchsize_manager.counters import JobTally
from batchsize_manager.job.state import JobState
from idl.exchange import Seat
from idl.plan import Assignment
from idl.records import IterationRecord

EVENTS = 200
"""The number of a job's latest events that are kept in memory."""


class Over(NamedTuple):
    """The end of a job."""

    why: str  # the reason, in words
    failed: bool  # whether the job ends because it cannot go on, rather than because its members have left


class Answer(NamedTuple):
    """The answer to a member's call; exactly one of the first four fields has a value.

    Attributes:
        continues: The first iteration that is not complete, if the member has just joined and is alone in a
            run that had begun; else None.
        after_write: Whether the answer has to wait until all that happened before it is on disk, since a
            restarted manager must know of it.
        seat: The member's place in the process group of the assignment's attempt, if it has called `rewind`
            and the manager forms the group; else None.
    """

    released: str | None  # the reason why the member is released
    recover: int | None  # the attempt with which the member has to fence the shards
    assignment: Assignment | None  # the member's next part
    report_on: bool | None  # true if nothing more is planned yet, but the member has parts left to report
    ahead: Sequence[Assignment] | None  # with lookahead, the member's parts after `assignment`; else None
    # Slices whose workers have gone without a report, of the reported iteration and later.
    lost: Sequence[Assignment]
    continues: int | None
    after_write: bool
    seat: Seat | None


@dataclass(slots=True)
class Effects:
    """All that the manager has to do after an event of a job.

    Attributes:
        state: The job's state, to be written, if it has changed. None before the job has started: its
            workers can join again then.
    """

    # Events in words, each with the worker that it is about; None where it is about several workers or none.
    log: list[tuple[str, str | None]] = field(default_factory=list)
    # The iteration that the job goes on from, if it has gone back: records of that and later ones are void.
    rewound: int | None = None
    # Records of the iterations that were completed, in that order, to be written.
    completed: list[IterationRecord] = field(default_factory=list)
    state: JobState | None = None
    # Whether the policy's models are to be written, since no member is left to add to them.
    learned: bool = False
    over: Over | None = None  # the end of the job, if it is over
    answer: bool = False  # whether there may be an answer now for members that wait (`Job.answer`)
    fit: bool = False  # whether the policy has observed something new, so that a fit may be due

    def __bool__(self) -> bool:
        done = self.log or self.completed or self.state or self.over or self.answer or self.fit
        return bool(done or self.learned or self.rewound is not None)


class Outbox:
    """A collector of the effects of a job's events, until the manager takes them.

    Attributes:
        keeps_state: Whether the state is among the effects. To leave it out where the manager writes none
            saves milliseconds for each of thousands of members that leave.
    """

    def __init__(self) -> None:
        self.effects = Effects()  # the effects since the last `take`
        # Whether the job's state has changed since then, so that it has to be written again.
        self.changed = False
        self.keeps_state = True
        self.events: deque[str] = deque(maxlen=EVENTS)  # the latest events, in words
        self.tally = JobTally()  # counts of events, for metrics

    def log(self, event: str, worker: str | None = None, *, changes: bool = True) -> None:
        """Add an event.

        Args:
            event: A sentence.
            worker: The worker that it is about; None where it is about several or none.
            changes: Whether the job's state may have changed with it, and has to be written again.
        """
        self.events.append(event)
        self.effects.log.append((event, worker))
        self.changed |= changes

    def complete(self, record: IterationRecord) -> None:
        """Add the record of an iteration that is complete."""
        self.tally.complete(record)
        self.effects.completed.append(record)

    def rewind(self, iteration: int) -> None:
        """Note that the job goes back to an iteration, which makes records of that and later ones void."""
        self.effects.rewound = iteration
        self.effects.completed = [done for done in self.effects.completed if done.iteration < iteration]
        self.effects.answer = True

    def take(self) -> Effects:
        """Return the effects since the last call."""
        effects = self.effects
        if effects:  # most of the thousands of reports in a round have none
            self.effects = Effects()
        return effects
