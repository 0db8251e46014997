"""Attempts of a job: how often it has gone back to an earlier iteration, and whether it has to now."""

from batchsize_manager.job.effects import Outbox
from batchsize_manager.job.iterations import Iterations
from batchsize_manager.job.members import Member, Members
from idl.errors import InvalidRequestError
from idl.records import Report


class Attempts:
    """The attempt that a job is in.

    Between `begin` and `end` the job is *recovering*: its members fence the shards with the new attempt, and
    nothing is planned.

    Args:
        members: The job's.
        iterations: The job's.
        outbox: Takes what happens.

    Attributes:
        number: The attempt; 0 for the first.
        why_recovering: Why the job is recovering, in words; empty where it is not.
        failure: Why the job cannot go on at all, or None.
    """

    def __init__(self, members: Members, iterations: Iterations, outbox: Outbox) -> None:
        self.number = 0
        self.why_recovering = ""
        self.failure: str | None = None
        self._members = members
        self._iterations = iterations
        self._outbox = outbox
        self._shards: tuple[str, str] | None = None  # a worker, and the shards that it uses in this attempt
        self._disputed = -1  # the iteration that was last given up since workers used different shards

    @property
    def recovering(self) -> bool:
        """True from `begin` to `end`: nothing is planned."""
        return bool(self.why_recovering)

    def begin(self, why: str, after: int = 0) -> None:
        """Forget what is under way, and have the members bring the shards to one iteration.

        Args:
            why: In words.
            after: A later attempt than the present one that is known already.
        """
        self.number = max(self.number, after) + 1
        self.why_recovering = why
        self._shards = None
        self._iterations.interrupt()
        self._outbox.effects.answer = True
        self._outbox.log(f"attempt {self.number} is needed: {why}")

    def begin_if_deserted(self) -> None:
        """Begin another attempt if all members of a job that redoes what they leave undone have gone."""
        members = self._members
        if members.started and members.redoes and not members and not self.recovering:
            self.begin("all members had gone")

    def end(self, iteration: int, now: float) -> None:
        """Go on from an iteration, which all shards are at."""
        self.why_recovering = ""
        self._iterations.go_to(iteration, now)
        self._outbox.rewind(iteration)

    def catch_up(self, member: Member, attempt: int) -> None:
        """Begin another attempt if a member knows of one that only an earlier manager can have told it of.

        That manager did not keep it, and its number may have been given to another attempt since.
        """
        if self._members.redoes and attempt >= self.number and attempt > member.told:
            self.begin(f"attempt {attempt} was not kept", after=attempt)

    def tell(self, member: Member) -> int:
        """Return the attempt's number, and note that a member is told of it."""
        member.told = self.number
        return self.number

    def must_recover(self, member: Member) -> int | None:
        """Return the attempt that a member has yet to fence the shards with, if there is one, and note it."""
        return self.tell(member) if self.recovering or member.attempt != self.number else None

    def is_void(self, worker: str, member: Member, report: Report) -> bool:
        """Return whether a report is of another attempt than the present one, so that it tells nothing."""
        if not self._members.redoes:
            return False
        if report.attempt is not None:
            self.catch_up(member, report.attempt)
        if not self.recovering and member.attempt == self.number and report.attempt in (None, self.number):
            return False
        self._outbox.log(
            f"{worker} reported iteration {report.iteration} of another attempt, which does not count", worker
        )
        return True

    def is_disputed(self, worker: str, report: Report) -> bool:
        """Return whether a report is void, since another worker uses other shards in the same attempt.

        One of them may rely on a shard that was started again before anything had been saved, so that the
        iteration is tried once more, in another attempt.

        Raises:
            InvalidRequestError: They used different shards in that, too; or there are no attempts.
        """
        if report.shards is None:
            return False
        if self._shards is None:
            self._shards = worker, report.shards
        other, shards = self._shards
        if report.shards == shards:
            return False
        difference = f"{worker!r} does not use the same shards of the parameter server as {other!r}"
        if not self._members.redoes or report.iteration == self._disputed:
            raise InvalidRequestError(f"{difference}: name the same ones for each worker, in the same order")
        self._disputed = report.iteration
        self.begin(difference)
        return True
