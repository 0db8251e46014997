"""Effects of a job's events: what the manager has to do after each, as values."""

from collections import deque
from dataclasses import dataclass, field

from batchsize_manager.counters import JobTally
from idl.records import IterationRecord

EVENTS = 200  # that a job keeps


@dataclass(slots=True)
class Effects:
    """Tasks of the manager after an event of a job.

    Attributes:
        log: What happened, in words, each with the worker that it is about; None where it is about several
            or none.
        completed: Records to keep, of the iterations that were completed, in that order.
        keep: Whether the members, the attempt or the batch's size have to be kept again.
        answer: Whether there may be an answer now for members that wait.
        fit: Whether the policy has seen something new, so that a fit may be due.
    """

    log: list[tuple[str, str | None]] = field(default_factory=list)
    completed: list[IterationRecord] = field(default_factory=list)
    keep: bool = False
    answer: bool = False
    fit: bool = False

    def __bool__(self) -> bool:
        return bool(self.log or self.completed or self.keep or self.answer or self.fit)


class Outbox:
    """The effects of a job's events until they are taken.

    Attributes:
        effects: What has been collected since the last `take`.
        events: The last things that happened, in words.
        tally: Counts of what happened, for metrics.
    """

    def __init__(self) -> None:
        self.effects = Effects()
        self.events: deque[str] = deque(maxlen=EVENTS)
        self.tally = JobTally()

    def log(self, event: str, worker: str | None = None) -> None:
        """Add something that happened, in words; whatever is logged changes what has to be kept."""
        self.events.append(event)
        self.effects.log.append((event, worker))
        self.effects.keep = True

    def complete(self, record: IterationRecord) -> None:
        """Add the record of an iteration that is complete."""
        self.tally.complete(record)
        self.effects.completed.append(record)

    def take(self) -> Effects:
        """Return what has been collected, and begin again."""
        effects = self.effects
        if effects:  # most reports have none, of thousands in a round
            self.effects = Effects()
        return effects
