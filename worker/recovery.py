"""How a worker brings its job together again, at one iteration, after a part of it had to start anew.

The shards may be at different versions, or have gone back; the manager may have forgotten the last plans. All
workers go through `recover` at once, and come to the same.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from idl.errors import DeadlineExceededError, InvalidRequestError, RewoundError
from idl.plan import Assignment

log = logging.getLogger(__name__)

_PAUSE = 0.05  # seconds, where the next try could be as quick to fail
_AGREE_SECONDS = 10.0  # shards that go on already, for others, may be apart for a moment


@dataclass(frozen=True)
class ShardState:
    """Where a shard stands that takes nothing of earlier attempts any more.

    Attributes:
        name: For messages.
        initialised: Whether it has parameters at all.
        version: Steps of the optimiser so far; meaningless until initialised.
        checkpoints: Versions before that it can go back to.
        complete: Whether it has all that it needs to go on from the next version.
    """

    name: str
    initialised: bool
    version: int
    checkpoints: Sequence[int]
    complete: bool = False

    @property
    def reachable(self) -> set[int]:
        """The versions that it can go on from."""
        return {self.version, *self.checkpoints, *([self.version + 1] if self.complete else [])}

    def __str__(self) -> str:
        if not self.initialised:
            return f"{self.name} has no parameters of this job"
        kept = ", ".join(map(str, self.checkpoints)) or "none"
        return f"{self.name} is at version {self.version}, its checkpoints: {kept}"


class Manager(Protocol):
    """The manager's side, as `worker.membership.Membership` has it."""

    attempt: int

    def recover(self, attempt: int) -> int:
        """Have another attempt begun than this one, and say which."""
        ...

    def has_trained(self) -> bool:
        """Whether it knows of an iteration that is complete."""
        ...

    def rewind(self, attempt: int, iteration: int) -> Assignment | None:
        """Propose where an attempt begins, and get the first assignment in it."""
        ...


class ParameterServer(Protocol):
    """The parameter server's side, as `worker.shards.Shards` has it."""

    def fence(self, attempt: int) -> list[ShardState]:
        """Let the shards take nothing of earlier attempts any more, and say where they stand."""
        ...

    def rewind(self, attempt: int, version: int, *, anew: bool = False) -> None:
        """Let the shards go on from a version; `anew`: with parameters that are set again."""
        ...


def common_version(shards: Sequence[ShardState]) -> int | None:
    """The latest version that all shards can go on from; None if there is none."""
    if not all(shard.initialised for shard in shards):
        return None
    return max(set.intersection(*(shard.reachable for shard in shards)), default=None)


def recover(
    manager: Manager,
    shards: ParameterServer,
    error: RewoundError,
    first: int | None,
    pull: Callable[[Assignment], None],
    timeout: float,
    log_fields: Callable[[], Mapping[str, object]] = dict,
) -> Assignment | None:
    """Begin another attempt, or take part in it, and go on from where it begins.

    Args:
        manager: The manager's side of this worker.
        shards: The parameter server's side.
        error: How it was noticed.
        first: The iteration to begin with where nothing was trained yet; None if this worker has trained.
        pull: Gets the parameters for an assignment.
        timeout: Seconds for all of it.
        log_fields: Gives what lines of log say beside their message.

    Returns:
        What to do next; None if this worker is released.

    Raises:
        InvalidRequestError: The shards have no version in common, and never will.
        DeadlineExceededError: It did not come about in time.
        EvenpaceError: A service is away, or refuses.
    """
    log.warning("this worker goes through a recovery: %s", error, extra=log_fields())
    begun = time.monotonic()
    while True:
        # What the shard is in was begun by the manager: it is asked for that, not for one more.
        known = max(manager.attempt, error.attempt - 1)
        try:
            attempt = manager.recover(known)
            states = shards.fence(attempt)
            version = common_version(states)
            anew = version is None and first is not None and _is_untrained(manager, states, first)
            if anew:
                version = first
            if version is not None:
                assignment = manager.rewind(attempt, version)
                if assignment is None:
                    return None
                shards.rewind(attempt, assignment.iteration, anew=anew)
                pull(assignment)
                log.warning(
                    "recovered: attempt %d, from iteration %d on",
                    attempt,
                    assignment.iteration,
                    extra=log_fields(),
                )
                return assignment
        except RewoundError as again:
            error = again
        else:
            forgotten = first is None and not all(state.initialised for state in states)
            if forgotten or time.monotonic() - begun > _AGREE_SECONDS:
                raise _no_common_version(states)
        if time.monotonic() - begun > timeout:
            raise DeadlineExceededError(f"no recovery within {timeout:g} s: {error}") from error
        time.sleep(_PAUSE)


def _is_untrained(manager: Manager, states: Sequence[ShardState], first: int) -> bool:
    """Whether the parameters that are there are the first ones, so that they may be set again."""
    return all(not s.initialised or s.version == first for s in states) and not manager.has_trained()


def _no_common_version(states: Sequence[ShardState]) -> InvalidRequestError:
    return InvalidRequestError(
        f"the parameter server's shards have no version in common, so that this job cannot go on "
        f"({'; '.join(map(str, states))}): start each shard with `evenpace ps --state DIR`, so that it keeps "
        f"checkpoints, and start it again with the same"
    )
