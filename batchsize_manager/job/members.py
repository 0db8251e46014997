"""The members of a job: who they are, what they can take, and when they were last heard of.

Knows nothing of plans beyond the numbers of iterations; the parts that a member has to do lie in `progress`.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from batchsize_manager.job.config import JobConfig
from batchsize_manager.job.effects import Outbox
from batchsize_manager.job.rendezvous import Arrival
from batchsize_manager.job.state import SavedMember, SavedRelease
from idl.bounds import Bounds
from idl.cuts import Cuts
from idl.errors import InvalidRequestError, NotMemberError, UnavailableError
from idl.exchange import FIXED_GROUP, FORMED_GROUP

DRAINED = "drained by an operator"
_REMOVED = 1000  # latest incarnations that were taken out, which must not join again
_RELEASED = 1000  # latest releases that outlive the manager
_ASKING = 1000  # latest incarnations that asked for room where there was none, which are remembered
_RETURN_SECONDS = 5.0  # within this time, a worker that lives calls a restarted manager


@dataclass(slots=True)
class Member:
    """One member's state; times in seconds."""

    incarnation: str
    bounds: Bounds
    joined_at: float  # when it joined or, if it was suspended, came back
    ready: int  # the first iteration that it may have a part of, since it joined or came back
    reported: int  # the last iteration whose slice it has reported
    assigned: int  # the iteration that it works on or, where it waits, works on next
    attempt: int  # the attempt that it is in, as far as its calls show
    announced: int  # the last attempt that this manager, or the saved state, has announced to it
    heard_at: float  # when it last called
    reported_at: float  # when it reported last, joined, was given a piece, or was between batches
    unreleasable: bool = False  # the others could not go on without it, at present
    beats: bool = False  # it sends heartbeats, or will
    is_between: bool = False  # its script does something else between two batches, says its last heartbeat
    awaited_at: float | None = None  # when an event last said that the others wait for its next batch
    suspended: bool = False  # it was silent while others waited: nothing is planned for it
    contested: tuple[str, float] | None = None  # the incarnation that wants its name, and since when
    back_by: float | None = None  # its connection broke: until when it may come back
    last: int | None = None  # its last iteration, if it is to be released after that
    leaving: str = ""  # why it is to be released, in words; empty if it is not
    is_returning: bool = False  # the manager was started again, and has not heard of it since
    device: str = ""  # its kind of device, in words; empty where it does not say
    threads: int | None = None  # threads that it computes with; None: it does not say, or was restored
    arrival: Arrival | None = None  # its last call of `rewind`, where the manager forms the group
    grouped: int = -1  # the last attempt whose group it is a member of

    def begin_at(self, iteration: int) -> None:
        """Make an iteration the first that the member may have a part of, and its next."""
        self.ready = iteration
        self.go_on_at(iteration)

    def go_on_at(self, iteration: int) -> None:
        """Make an iteration the member's next; it has nothing more to report of earlier ones."""
        self.reported, self.assigned = iteration - 1, iteration

    def has_arrived(self, attempt: int) -> bool:
        """Return whether the member is ready for the group of an attempt."""
        return self.arrival is not None and self.arrival.attempt == attempt

    @property
    def is_drained(self) -> bool:
        """True if an operator has drained the member, which holds in later attempts, too."""
        return self.leaving == DRAINED

    def stays(self, since: float) -> bool:
        """Return whether the member is not about to go, and lives, as it has shown since a time if it can."""
        if self.leaving or self.suspended or self.back_by is not None:
            return False
        return not self.beats or self.heard_at > since

    def standing(self, worker: str, now: float) -> "Standing":
        """Return the member's state as clients see it."""
        if self.last is not None:
            state = "leaving"
        elif self.back_by is not None:
            state = "away"
        elif self.suspended:
            state = "silent"
        elif self.awaited_at is not None:
            state = "between batches"
        else:
            state = "working"
        return Standing(worker, state, self.bounds, self.assigned, max(0.0, now - self.heard_at), self.device)


@dataclass(frozen=True, slots=True)
class Standing:
    """A member's state for clients: the IDL's `MemberStatus`, where a waiting member counts as working."""

    worker: str
    state: str
    bounds: Bounds
    iteration: int
    silence: float  # seconds
    device: str


class Members:
    """All members of a job by name, in the order of their slices.

    Args:
        config: The job's configuration.
        outbox: Collects the effects.
        is_busy: Function of a member's name: whether the member has another's part to do.

    Attributes:
        exchange: The way in which members bring their gradients together, one of `idl.exchange`; None before
            the first has joined.
    """

    def __init__(self, config: JobConfig, outbox: Outbox, is_busy: Callable[[str], bool]) -> None:
        self.by_name: dict[str, Member] = {}  # the members' states
        # Whether the job has had, at one time, the number of members with which it starts.
        self.started = False
        # The number of members that an operator wants; None: the configuration's.
        self.chosen: int | None = None
        self.exchange: str | None = None
        self._config = config
        self._outbox = outbox
        self._is_busy = is_busy
        self._released: dict[str, str] = {}  # incarnation to the reason
        self._cut_off: dict[str, Member] = {}  # by name; dead since their connection broke, it seems
        self._removed: deque[str] = deque(maxlen=_REMOVED)  # incarnations, the latest last
        self._asking: dict[str, float] = {}  # incarnation to when it first asked for room, and there was none

    def __len__(self) -> int:
        return len(self.by_name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.by_name)

    def __contains__(self, worker: object) -> bool:
        return worker in self.by_name

    @property
    def wanted(self) -> int:
        """The number of members that the job is to have: as many start it, and later ones are awaited."""
        return self._config.workers if self.chosen is None else self.chosen

    @property
    def redoes(self) -> bool:
        """True if others redo the parts that a member leaves undone; False if these parts are lost."""
        return self.recovers and not self.has_formed_groups

    @property
    def has_fixed_group(self) -> bool:
        """True if members all-reduce in a group that stays, and cannot go on without each other."""
        return self.exchange == FIXED_GROUP

    @property
    def has_formed_groups(self) -> bool:
        """True if members all-reduce in a group that the manager forms in each attempt."""
        return self.exchange == FORMED_GROUP

    @property
    def recovers(self) -> bool:
        """True if the job goes on in another attempt where a member's loss or return demands it."""
        return self._config.synchronisation.mode == "bsp" and not self.has_fixed_group

    @property
    def staying(self) -> dict[str, Member]:
        """The members that are planned for: those that are neither leaving nor suspended."""
        return {name: m for name, m in self.by_name.items() if m.last is None and not m.suspended}

    @property
    def saved(self) -> tuple[SavedMember, ...]:
        """The members, and those that were cut off, in the form that `restore_job` takes."""
        gone = {name: member for name, member in self._cut_off.items() if name not in self.by_name}
        return tuple(
            SavedMember(
                name,
                m.incarnation,
                m.bounds,
                drained=m.is_drained,
                device=m.device,
                beats=m.beats,
                cut_off=name in gone,
            )
            for name, m in (self.by_name | gone).items()
        )

    @property
    def saved_releases(self) -> tuple[SavedRelease, ...]:
        """The latest releases, in the form that `restore_releases` takes."""
        return tuple(SavedRelease(*release) for release in list(self._released.items())[-_RELEASED:])

    def restore_releases(self, releases: Iterable[SavedRelease]) -> None:
        """Remember who was released under an earlier manager."""
        self._released.update((release.incarnation, release.why) for release in releases)

    def is_alone(self, worker: str) -> bool:
        """Return whether all other members have lost their connection, if there are any."""
        return all(name == worker or m.back_by is not None for name, m in self.by_name.items())

    def standings(self, now: float) -> list[Standing]:
        """Return each member's standing, in the order of their slices."""
        return [member.standing(worker, now) for worker, member in self.by_name.items()]

    def add(
        self,
        worker: str,
        incarnation: str,
        bounds: Bounds,
        now: float,
        *,
        first: int,
        attempt: int,
        device: str = "",
        threads: int | None = None,
        beats: bool = False,
    ) -> Member:
        """Add a member that has a part of iterations from `first` on; other arguments as in `Job.join`."""
        member = self.by_name[worker] = Member(
            incarnation,
            bounds,
            joined_at=now,
            ready=first,
            reported=first - 1,
            assigned=first,
            attempt=attempt,
            announced=attempt,
            heard_at=now,
            reported_at=now,
            unreleasable=self.has_fixed_group,
            beats=beats and self._config.heartbeat > 0,
            device=device,
            threads=threads,
        )
        return member

    def remove(self, worker: str) -> None:
        """Take out a member; the same incarnation cannot `join` again."""
        self._removed.append(self.by_name.pop(worker).incarnation)
        self._outbox.effects.learned |= not self.by_name

    def check_exchange(self, worker: str, exchange: str) -> None:
        """Check that a newcomer exchanges gradients as the members do, and that the job's mode allows it.

        Raises:
            InvalidRequestError: It does not, or the mode does not.
        """
        if self.exchange not in (None, exchange):
            raise InvalidRequestError(
                f"the job's workers exchange gradients by {self.exchange!r}, but {worker!r} names "
                f"{exchange!r}: give all its workers the same"
            )
        mode = self._config.synchronisation.mode
        if exchange == FORMED_GROUP and mode != "bsp":
            raise InvalidRequestError(f"exchange {exchange!r}: belongs to bsp, but the mode is {mode}")

    def check_group_open(self, worker: str) -> None:
        """Check that a newcomer does not come too late for a group that nobody can join.

        Raises:
            InvalidRequestError: The group's job has begun without it.
            UnavailableError: Likewise, but one of its members seems to have died: the job may be over soon.
        """
        if not self.has_fixed_group or not self.started or not self.by_name:
            return
        said = (
            f"the job has begun with {', '.join(self)} alone, and nobody can join the group later in which "
            f"they all-reduce"
        )
        if any(member.back_by is not None for member in self.by_name.values()):
            raise UnavailableError(f"{said}; it may be over soon")
        raise InvalidRequestError(
            f"{said}, so that {worker!r} comes too late: start the manager with --workers set to the number "
            f"of ranks; it has {self.wanted}"
        )

    def check_never_removed(self, worker: str, incarnation: str) -> None:
        """Check that an incarnation was not a member that has been taken out.

        Raises:
            NotMemberError: It was taken out.
        """
        if incarnation in self._removed:
            self.known(worker, incarnation)

    def device_difference(self, worker: str) -> str:
        """Return how a member's device or threads differ from another's, in words; empty if none do."""
        own = self.by_name[worker]
        for name, other in self.by_name.items():
            pairs = ((own.device, other.device), (own.threads, other.threads))
            if any(one and another and one != another for one, another in pairs):
                return f"{worker} computes on {_computes_on(own)}, and {name} on {_computes_on(other)}"
        return ""

    def contest(self, worker: str, incarnation: str, now: float) -> None:
        """Check that another incarnation may have a member's name, since the member has fallen silent.

        The member has some seconds from the first such call on to show that it lives.

        Raises:
            InvalidRequestError: The member lives.
            UnavailableError: It is not known yet whether the member lives; ask again.
        """
        member = self.by_name[worker]
        if member.contested is None or member.contested[0] != incarnation:
            member.contested = incarnation, now
        since = member.contested[1]
        lives = member.heard_at > since or not (member.beats or member.is_returning)
        silence = self._config.silence
        patience = min(silence, _RETURN_SECONDS) if member.is_returning else silence
        if not lives and now - since >= patience:
            return
        said = f"worker {worker!r} is a member already, as incarnation {member.incarnation}; "
        if lives:
            raise InvalidRequestError(f"{said}give each worker a name of its own")
        raise UnavailableError(f"{said}it is not known yet whether it lives")

    def get(self, worker: str, incarnation: str) -> Member | None:
        """Return a member's state; None if there is no such member, or it is another incarnation."""
        member = self.by_name.get(worker)
        return member if member is not None and member.incarnation == incarnation else None

    def cut_off(self, worker: str, since: float) -> None:
        """Remember a member that counts as dead since its connection broke, in case it is heard of again.

        Args:
            since: Members that were cut off before, and were last heard of before this time, are forgotten.
        """
        self._cut_off = {name: m for name, m in self._cut_off.items() if m.heard_at >= since}
        self._cut_off[worker] = self.by_name[worker]

    def away(self, since: float) -> list[str]:
        """Return the names of all members that `returning` returns."""
        return [n for n, m in self._cut_off.items() if self.returning(n, m.incarnation, since)]

    def returning(self, worker: str, incarnation: str, since: float) -> Member | None:
        """Return a member that was cut off, if its name is free and it was last heard of since a time."""
        member = self._cut_off.get(worker)
        if member is None or member.incarnation != incarnation or worker in self.by_name:
            return None
        return member if member.heard_at >= since else None

    def take_back(self, worker: str, member: Member) -> None:
        """Make a worker that was cut off a member again."""
        self.by_name[worker] = member
        del self._cut_off[worker]

    def known(self, worker: str, incarnation: str) -> Member:
        """Return a member's state.

        Raises:
            NotMemberError: There is no such member, or it is another incarnation; the message has the job's
                events about the worker.
        """
        member = self.get(worker, incarnation)
        if member is None:
            events = self._outbox.events
            other = self.by_name.get(worker)
            reason = (
                "it never joined, left, or was taken out"
                if other is None
                else f"another start of it has its name now, as incarnation {other.incarnation}"
            )
            raise NotMemberError(
                f"worker {worker!r}, incarnation {incarnation!r}, is not a member: {reason} "
                f"({'; '.join(e for e in events if e.startswith(worker)) or '-'})"
            )
        return member

    def check_bounds(self, changed: Mapping[str, Bounds], least: int, total: int, *, complete: bool) -> None:
        """Check that the members can take a batch, some of them with changed bounds.

        Args:
            least: Samples of the batch, or the fewest that a sizer may make of it.
            total: Samples of the batch.
            complete: Whether the present members have to take all of it, since no other is awaited.

        Raises:
            InvalidRequestError: The minima sum to more than the batch, or the maxima to less.
        """
        bounds = {name: changed.get(name, member.bounds) for name, member in self.by_name.items()}
        minima = sum(bound.minimum for bound in bounds.values())
        if minima > total:
            raise InvalidRequestError(
                f"the workers' minimum batch sizes would sum to {minima}, "
                f"more than the total batch size, {total}"
            )
        maxima = sum(bounds[name].maximum for name in self.staying)
        if complete and self.staying and maxima < least:
            raise InvalidRequestError(
                f"the workers could take {maxima} samples together at most, "
                f"less than the total batch size, {least}"
            )

    def check_room(self, worker: str, incarnation: str, bounds: Bounds, cuts: Cuts, now: float) -> None:
        """Check that a newcomer's minimum fits into a batch beside the others'.

        Members that are about to go, and those that may have died, keep a newcomer waiting, but do not have
        it refused: one that sends heartbeats has to show that it lives after the newcomer has asked first.

        Raises:
            InvalidRequestError: The minima sum to more than the batch.
            UnavailableError: Likewise, but some of the others may go, or be gone; ask again.
        """
        others = [(name, member) for name, member in self.by_name.items() if name != worker]
        minima = bounds.minimum + sum(member.bounds.minimum for _, member in others)
        if minima <= cuts.padded:
            self._asking.pop(incarnation, None)
            return
        since = self._asking.setdefault(incarnation, now)
        while len(self._asking) > _ASKING:
            del self._asking[next(iter(self._asking))]
        unsure = [(name, member) for name, member in others if not member.stays(since)]
        if minima - sum(member.bounds.minimum for _, member in unsure) <= cuts.padded:
            raise UnavailableError(
                f"a batch of {cuts.total} samples has no room for {worker!r} yet, not before it is known "
                f"whether {', '.join(name for name, _ in unsure)} will stay"
            )
        del self._asking[incarnation]
        if cuts.size == 1:
            raise InvalidRequestError(
                f"with {worker!r} the workers' minimum batch sizes sum to {minima}, "
                f"more than the total batch size, {cuts.total}"
            )
        raise InvalidRequestError(
            f"with {worker!r} the workers take {minima // cuts.size} micro-batches at least, one each or as "
            f"many as their minimum batch sizes need, but a batch of {cuts.total} samples in micro-batches "
            f"of {cuts.size} has {len(cuts)}: make the batch larger, micro-batches or minima smaller, or "
            f"take fewer workers"
        )

    def lower_maximum(self, worker: str, maximum: int, total: int) -> bool:
        """Lower a member's maximum, but not below the samples of `total` that the others cannot take.

        Returns:
            Whether its bounds have changed.
        """
        member = self.by_name[worker]
        bounds = member.bounds
        others = sum(
            other.bounds.maximum // other.bounds.granularity * other.bounds.granularity
            for name, other in self.staying.items()
            if name != worker
        )
        left = total - others  # that nobody else could take
        if member.last is None and left > maximum:
            self._outbox.log(
                f"{worker} can take {maximum} samples at once at most, but the others leave it {left}", worker
            )
            maximum = -(-left // bounds.granularity) * bounds.granularity
        if maximum >= bounds.maximum:
            return False
        granularity = bounds.granularity if bounds.granularity <= maximum else 1
        minimum = min(bounds.minimum, maximum // granularity * granularity)
        member.bounds = replace(bounds, minimum=minimum, maximum=maximum, granularity=granularity)
        self._outbox.log(f"{worker} can take {maximum} samples at most", worker)
        return True

    def lower_at_once(self, worker: str, at_once: int) -> bool:
        """Lower the most micro-batches that a member computes at once; return whether they were more."""
        member = self.by_name[worker]
        if at_once >= member.bounds.at_once:
            return False
        member.bounds = replace(member.bounds, at_once=at_once)
        self._outbox.log(f"{worker} can compute {at_once} micro-batches at once at most", worker)
        return True

    def is_released(self, worker: str, incarnation: str) -> bool:
        """Return whether a worker was released, and is no longer a member."""
        return incarnation in self._released and self.get(worker, incarnation) is None

    def release(self, leaving: Mapping[str, str], last: int) -> None:
        """Plan nothing for some members any more.

        Args:
            leaving: The reasons in words, by member's name.
            last: The last iteration that the members have a part of.
        """
        for worker, why in leaving.items():
            self.by_name[worker].last, self.by_name[worker].leaving = last, why

    def keep_all(self) -> None:
        """Keep those that are leaving until a group without them is decided; a drained one stays drained."""
        for member in self.by_name.values():
            member.last = None
            if not member.is_drained:
                member.leaving = ""

    def let_go(self) -> None:
        """Take out the members that are to be released, once they have finished all their parts."""
        for worker, member in list(self.by_name.items()):
            if member.last is not None and member.reported >= member.last and not self._is_busy(worker):
                del self.by_name[worker]
                self._outbox.effects.learned |= not self.by_name
                self._released[member.incarnation] = member.leaving
                self._outbox.log(f"{worker} was released: {member.leaving}", worker)

    def dismiss(self, worker: str, incarnation: str, why: str) -> None:
        """Release a worker that was a member, and comes back to find no room for it."""
        self._cut_off = {name: m for name, m in self._cut_off.items() if m.incarnation != incarnation}
        self._released[incarnation] = why
        self._outbox.log(f"{worker} was released: {why}", worker)

    def why_released(self, worker: str, incarnation: str, known: int = -1) -> str | None:
        """Return why a worker is released, in words; None if it is not.

        A member that has its last part already, of iteration `known`, is released before it reports that.
        """
        member = self.get(worker, incarnation)
        if member is None:
            return self._released.get(incarnation)
        return member.leaving if member.last is not None and known >= member.last else None


def _computes_on(member: Member) -> str:
    return f"{member.device or 'a device that it does not name'}, {member.threads or 'unknown'} threads"
