"""Who may do what on a shared cluster: a user what concerns their own jobs, an operator everything.

Callers show tokens. Where there are no keys to check them with, nobody needs one, and everybody is an
operator. This module knows no engine, thread, file or clock.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from idl.errors import InvalidRequestError, UnauthorisedError
from rpc.tokens import OPERATOR, Purpose, TokenKeys
from scheduler.cluster.history import JobLine, Line
from scheduler.cluster.jobs import LiveJob

USERS_CALLS = ("submit", "cancel", "hold", "status", "record", "own_jobs")
OPERATORS_CALLS = {
    "change_policy": "changes the policy",
    "drain": "drains a node",
    "close": "ends the scheduler",
}
"""What only operators may call, each with what it does."""

# What others see of a user's job: its devices and its place in the queue.
_SEEN_BY_OTHERS = (
    "state",
    "held",
    "since",
    "place",
    "weight",
    "most",
    "target",
    "workers",
    "submitted",
    "started",
)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who has called.

    An owner is a user's name, or empty for what belongs to operators alone: their jobs, those of a time
    without tokens, and what concerns the whole cluster.
    """

    user: str | None  # None for an operator

    @property
    def owner(self) -> str:
        """Return the owner of what this caller brings."""
        return self.user or ""

    def may(self, owner: str) -> bool:
        """Return whether the caller may see and change what is this owner's."""
        return self.user is None or self.user == owner


class Rights:
    """The check of callers.

    Args:
        keys: Keys that tokens are signed with; None where no tokens are asked for.
    """

    def __init__(self, keys: TokenKeys | None) -> None:
        self._keys = keys

    def admit(self, token: str, call: str, now: float) -> Caller:
        """Return who calls.

        Args:
            token: The caller's token; empty for none.
            call: The name of what is called.
            now: Seconds since 1970.

        Raises:
            InvalidRequestError: There is no such call.
            UnauthorisedError: The token is missing or not valid, or a user's where an operator's is needed.
        """
        if call not in USERS_CALLS and call not in OPERATORS_CALLS:
            raise InvalidRequestError(
                f"call {call!r}: there are {', '.join((*USERS_CALLS, *OPERATORS_CALLS))}"
            )
        if self._keys is None:
            return Caller(None)
        if not token:
            raise UnauthorisedError(
                "this shared cluster asks for a user's or an operator's token: give yours with --token-file"
            )
        name = self._keys.verify(token, now, Purpose.CLUSTER).name
        if name == OPERATOR:
            return Caller(None)
        if call in OPERATORS_CALLS:
            raise UnauthorisedError(
                f"only an operator's token {OPERATORS_CALLS[call]}, and this one is for user {name!r}"
            )
        return Caller(name)


def check_job(jobs: Mapping[str, LiveJob], name: str, caller: Caller) -> None:
    """Check that a caller may change a job; another's is refused as one that does not exist.

    Raises:
        InvalidRequestError: The job has ended, or there is none that the caller may change.
    """
    own = {other: job for other, job in jobs.items() if caller.may(job.request.owner)}
    if name in own and own[name].state != "ended":
        return
    there = ", ".join(other for other, job in own.items() if job.state != "ended") or "none"
    if name in own:
        raise InvalidRequestError(f"job {name!r} has ended; there are: {there}")
    if caller.user is None:
        raise InvalidRequestError(f"job {name!r} is not known; there are: {there}")
    raise InvalidRequestError(f"job {name!r} is none of user {caller.user!r}, whose jobs are: {there}")


def owner_of(name: str, before: str | None, caller: Caller) -> str:
    """Return whose a job is that a caller submits: it stays that of the earlier job of its name.

    Args:
        before: Owner of that job, which is still known, or has left its folder; None where the name is free.

    Raises:
        InvalidRequestError: It is another's.
    """
    if before is None:
        return caller.owner
    if not caller.may(before):
        raise InvalidRequestError(f"job {name!r}: the name is not free; give another --name")
    return before


def visible_status(status: Mapping[str, Any], lines: Sequence[Line], caller: Caller) -> dict[str, Any]:
    """Return what a caller sees of `ClusterScheduler.status`.

    Others' jobs that have not ended are devices that are used, and places in the queue, without a name.

    Args:
        status: All of it, where each line of the log comes with its owner.
        lines: The record, in which others' jobs are called the same.
    """
    shown = {**status, "log": [line for owner, line in status["log"] if caller.may(owner)]}
    if caller.user is None:
        return shown
    names = _Names(lines, caller)
    jobs = [
        job if caller.may(job["owner"]) else _anonymous(job, names.of(job["job"], job["submitted"]))
        for job in status["jobs"]
        if caller.may(job["owner"]) or job["state"] != "ended"
    ]
    trouble = "its operator can see why" if status["trouble"] else ""
    return {**shown, "jobs": jobs, "trouble": trouble}


def _anonymous(job: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: job[key] if key in _SEEN_BY_OTHERS else None for key in job} | {"job": name}


def visible_record(lines: Sequence[Line], caller: Caller) -> list[Line]:
    """Return what a caller sees of the record: others' jobs without names and reasons."""
    names = _Names(lines, caller)
    return [
        replace(line, job=names.of(line.job, line.submitted), why="", owner="")
        if isinstance(line, JobLine) and not caller.may(line.owner)
        else line
        for line in lines
    ]


class _Names:
    """What stands for the names of others' jobs, numbered as they come in the record; no job is called so."""

    def __init__(self, lines: Sequence[Line], caller: Caller) -> None:
        self._names: dict[tuple[str, float], str] = {}
        for line in lines:
            if isinstance(line, JobLine) and not caller.may(line.owner):
                self.of(line.job, line.submitted)

    def of(self, job: str, submitted: float) -> str:
        """Return that of a job, which has the next number where it is new."""
        return self._names.setdefault((job, submitted), f"other {len(self._names) + 1}")
