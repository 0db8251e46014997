"""The state of a job that outlives its manager, as one value: `Job.saved` makes it, `restore_job` takes it.

Storage writes and reads all of its fields, whatever they are. A field that is added needs a default, which it
has where an older file lacks it.
"""

from dataclasses import dataclass

from batchsize_manager.balancing import Balancing
from batchsize_manager.job.batch_sizes import BatchChange
from batchsize_manager.sizers import Sizing
from idl import check
from idl.bounds import Bounds
from idl.exchange import EXCHANGES, FIXED_GROUP, PARAMETER_SERVER
from idl.plan import JobSpec

_MOST = 2**53  # iterations, attempts and the like, with room for more


@dataclass(frozen=True, slots=True)
class SavedMember:
    """A member of a saved job."""

    worker: str
    incarnation: str
    bounds: Bounds
    unreleasable: bool = False  # earlier versions wrote this of members of a fixed group
    drained: bool = False  # an operator wants it released
    device: str = ""  # its kind of device, in words
    beats: bool = False  # it sends heartbeats
    cut_off: bool = False  # it counts as dead since its connection broke, but returns if it is heard of


@dataclass(frozen=True, slots=True)
class SavedRelease:
    """A worker that was released, and may not have heard of it."""

    incarnation: str
    why: str  # in words


@dataclass(frozen=True, slots=True)
class JobState:
    """The state of a job that is saved (ValueError: a number is out of its range)."""

    spec: JobSpec  # the data set and the batches
    mode: str  # mode of synchronisation (`Synchronisation.mode`)
    batch_changes: tuple[BatchChange, ...]  # the last changes of the size of its batches, or its beginning
    batch_size: int  # samples of a whole batch, which an operator may have changed (`Batches.total`)
    started: bool = True  # whether the job has had, at one time, the number of members with which it starts
    attempt: int = 0  # the present attempt's number
    paused: bool = False  # whether an operator has paused it
    # The policy and predictor that an operator has chosen; None: the manager's own.
    balancing: Balancing | None = None
    # The members, in the order of their slices, and workers that may come back.
    members: tuple[SavedMember, ...] = ()
    first_iteration: int = 0  # the number of the job's first iteration
    # The way to choose the batch's size that an operator has chosen; None: the manager's own.
    sizing: Sizing | None = None
    # Name of the sizer, whoever has chosen it, for those who read the state; None: it is not known.
    sizer: str | None = None
    exchange: str = PARAMETER_SERVER  # the way in which its workers exchange gradients, one of `idl.exchange`
    workers: int | None = None  # the number of workers that an operator wants; None: the manager's own
    released: tuple[SavedRelease, ...] = ()  # the latest last

    def __post_init__(self) -> None:
        if any(member.unreleasable for member in self.members):
            object.__setattr__(self, "exchange", FIXED_GROUP)  # as an earlier version has written it
        if self.exchange not in EXCHANGES:
            raise ValueError(f"exchange {self.exchange!r}: must be one of {', '.join(EXCHANGES)}")
        check.integer("attempt", self.attempt, 0, _MOST)
        check.integer("batch_size", self.batch_size, 1, self.spec.dataset_size)
        if self.workers is not None:
            check.integer("workers", self.workers, 1, self.spec.dataset_size)
        if not self.batch_changes:
            raise ValueError("batch_changes: must have one at least")
        check.integer("first_iteration", self.first_iteration, 0, _MOST)
        for change in self.batch_changes:
            check.integer("batch_changes", change.size, 1, self.spec.dataset_size)
            check.number("batch_changes", change.gain, 0.0, float(_MOST))
            check.number("batch_changes", change.progress, 0.0, float(_MOST))
            for place in (change.iteration, change.epoch, change.start):
                check.integer("batch_changes", place, 0, _MOST)
