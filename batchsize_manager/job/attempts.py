"""Attempts of a job: each time that the job has to go back to an earlier iteration, another attempt begins.

An attempt's number fences the shards and the manager off from messages of earlier attempts. Where the manager
forms the members' process group, each attempt has a group of its own, and so a change of the members is an
attempt, too.
"""

import uuid
from math import inf

from batchsize_manager.job.effects import Outbox
from batchsize_manager.job.iterations import Iterations
from batchsize_manager.job.members import Member, Members
from batchsize_manager.job.rendezvous import Group
from idl.errors import InvalidRequestError
from idl.records import Report


class Attempts:
    """The present attempt of a job.

    Between `begin` and `end` the job is *recovering*: its members fence the shards with the new attempt, and
    nothing is planned.

    Args:
        iterations: The job's iterations.
        outbox: Collects the effects.

    Attributes:
        manager: Id of the manager's process, for this job: one that is started again may have lost
            attempts, and gives their numbers to others.
        wanted: Why another group is wanted, in words; empty if none is. Nothing is planned for the present
            group then, but what hands its state on.
        keeping: Whether the members' state is to be written down before the job pauses. A group is formed for
            that, and once one of its members says that it has done so, nothing more is planned.
    """

    def __init__(self, members: Members, iterations: Iterations, outbox: Outbox) -> None:
        self.manager = uuid.uuid4().hex
        self.number = 0  # the present attempt's number; 0 for the first
        self.why_recovering = ""  # why the job is recovering, in words; empty where it is not
        self.failure: str | None = None  # why the job cannot go on at all, or None
        self.wanted = ""
        self.keeping = False
        # The present attempt's group; None while it is not decided, or the manager forms none.
        self.group: Group | None = None
        self._wanted_by = inf  # the time from which on the group is not to finish what it has been given
        self._members = members
        self._iterations = iterations
        self._outbox = outbox
        self._began = 0, 0  # the last attempt that has begun to train, and its first iteration
        self._settled = 0  # the last attempt that a member has reported an iteration of
        self._shards: tuple[str, str] | None = None  # a worker, and the shards that it uses in this attempt
        # The iteration that was last given up since workers used different shards, and all pairs of these.
        self._disputed: tuple[int, set[frozenset[str]]] = -1, set()

    @property
    def is_recovering(self) -> bool:
        """True from `begin` to `end`: nothing is planned."""
        return bool(self.why_recovering)

    def begin(self, why: str, after: int = 0) -> None:
        """Begin another attempt: drop open iterations, and have members bring the shards to one iteration.

        Args:
            why: The reason in words, for the job's log.
            after: The number of an attempt that a member is in; the new attempt's is above it.
        """
        self.number = max(self.number, after) + 1
        self.why_recovering = why
        self.wanted, self._wanted_by, self.group = "", inf, None
        if self._members.has_formed_groups:
            self._members.keep_all()
        self._shards = None
        self._iterations.interrupt()
        self._outbox.effects.answer = True
        self._outbox.log(f"attempt {self.number} is needed: {why}")

    def want(self, why: str, by: float = inf) -> None:
        """Want another group, in another attempt.

        It begins once the iterations that are planned are complete.

        Args:
            why: The reason in words, for the job's log.
            by: The time at which it begins in any case, in seconds: infinity for a change that can wait.
        """
        if self._members.has_formed_groups and self._members.started and not self.is_recovering:
            self.wanted = self.wanted or why
            self._wanted_by = min(self._wanted_by, by)
            self._outbox.effects.answer = True  # with lookahead, members have to report on

    def is_urgent(self, now: float) -> bool:
        """Return whether the group that is wanted cannot wait until the planned iterations are complete."""
        return bool(self.wanted) and now >= self._wanted_by

    @property
    def has_handed_on(self) -> bool:
        """True if all members of the group have its state: none lacked it, or they have reported a step."""
        group = self.group
        return group is not None and (group.source is None or self._iterations.first_open > group.iteration)

    def is_grouped(self, member: Member) -> bool:
        """Return whether a member is one of the present attempt's group."""
        return self.group is not None and member.grouped == self.number

    def took_part(self, member: Member) -> bool:
        """Return whether a member was in the group that trained last, whatever attempt has begun since."""
        return member.grouped == self._began[0]

    @property
    def ranks(self) -> dict[str, int]:
        """The ranks of the members that are in the present attempt's group, by name."""
        names = () if self.group is None else self.group.names
        members = self._members.by_name
        return {n: rank for rank, n in enumerate(names) if n in members and self.is_grouped(members[n])}

    @property
    def is_settled(self) -> bool:
        """True if a report has shown that the shards are in the present attempt; else newcomers see to it."""
        return not self._members.redoes or self._settled == self.number or not self.number

    def settle(self) -> None:
        """Note that a report of the present attempt counts."""
        self._settled = self.number

    def begin_if_deserted(self) -> None:
        """Begin another attempt if all members have gone, so that nobody is left to redo their parts."""
        members = self._members
        if members.started and members.redoes and not members and not self.is_recovering:
            self.begin("all members had gone")

    def end(self, iteration: int, now: float) -> None:
        """End the recovery: the job goes on from `iteration`, to which all shards have gone back."""
        self.why_recovering = ""
        self._began = self.number, iteration
        self._iterations.go_to(iteration, now)
        self._outbox.rewind(iteration)

    def catch_up(self, member: Member, attempt: int, formed: int | None = None) -> None:
        """Begin another attempt if a member is in one that this manager has not announced to it.

        An earlier manager announced it, and was killed before it had written it. As this manager may have
        given the same number to another attempt since, a new one begins, above both.

        Args:
            attempt: The attempt that it names.
            formed: The attempt whose group it formed last; None for none. The present one's cannot have been
                formed while it is recovering.
        """
        known = attempt if attempt > member.announced else -1
        if formed is not None and self.is_recovering:
            known = max(known, formed)
        if self._members.recovers and known >= self.number:
            self.begin(f"attempt {known} was not kept", after=known)

    def check_steps(self, formed: int | None, formed_by: str, steps: int) -> None:
        """Check that a member's state has had the steps with which its attempt began, where that is known.

        Raises:
            InvalidRequestError: It has had fewer.
        """
        attempt, first = self._began
        if formed == attempt and formed_by == self.manager and steps < first:
            raise InvalidRequestError(
                f"iteration {steps}: the state of attempt {attempt} has had {first} steps or more"
            )

    def announce(self, member: Member) -> int:
        """Return the present attempt's number, and note that it is sent to a member."""
        member.announced = self.number
        return self.number

    def must_recover(self, member: Member) -> int | None:
        """Return the attempt with which a member has yet to fence the shards, and note that it is sent.

        Returns:
            The attempt's number; None if the member has nothing to recover from, or has arrived at the
            rendezvous, where it waits for the others.
        """
        if self._members.has_formed_groups and self.is_recovering:
            return None if member.has_arrived(self.number) else self.announce(member)
        return self.announce(member) if self.is_recovering or member.attempt != self.number else None

    def is_void(self, worker: str, member: Member, report: Report) -> bool:
        """Return whether a report is of another attempt than the present one, so that it does not count."""
        if not self._members.recovers:
            return False
        if report.attempt is not None:
            self.catch_up(member, report.attempt)
        if not self.is_recovering and member.attempt == self.number and report.attempt in (None, self.number):
            return False
        said = f"{worker} reported iteration {report.iteration} of another attempt, which does not count"
        self._outbox.log(said, worker, changes=False)  # thousands of members may report so at once
        return True

    def is_disputed(self, worker: str, report: Report) -> bool:
        """Return whether a report is void because two workers use different shards in the same attempt.

        One of the workers may rely on an earlier start of a shard. Therefore another attempt begins, and the
        iteration is tried once more; again, if it is another shard, or another start of it, in the next try.

        Raises:
            InvalidRequestError: Workers used these different shards in an earlier try, too, or the job's mode
                has no attempts.
        """
        if report.shards is None:
            return False
        if self._shards is None:
            self._shards = worker, report.shards
        other, shards = self._shards
        if report.shards == shards:
            return False
        difference = f"{worker!r} does not use the same shards of the parameter server as {other!r}"
        iteration, pairs = self._disputed
        if iteration != report.iteration:
            pairs = set()
            self._disputed = report.iteration, pairs
        pair = frozenset((report.shards, shards))
        if not self._members.redoes or pair in pairs:
            raise InvalidRequestError(f"{difference}: name the same ones for each worker, in the same order")
        pairs.add(pair)
        self.begin(difference)
        return True
