"""Recovery of a job at one iteration, after the manager, a shard or a worker has been restarted.

The shards may be at different versions, or have gone back; the manager may have forgotten the last plans. All
workers run `recover` at once, and agree on the same iteration.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from idl.errors import DeadlineExceededError, InvalidRequestError, RewoundError
from idl.exchange import Seat
from idl.plan import Assignment
from rpc.field_log import FieldLog

log = FieldLog(__name__)

_PAUSE = 0.05  # seconds between tries
_TRIES = 200  # shards that other workers have already rewound may differ for a moment, which is no time that
# this worker was held up for: each try has to find them so, one after the other


@dataclass(frozen=True)
class ShardState:
    """The versions of a fenced shard, which accepts no calls of earlier attempts."""

    name: str  # the shard's name in messages
    initialised: bool  # whether it has parameters
    version: int  # steps of the optimiser so far; meaningless until initialised
    checkpoints: Sequence[int]  # versions that it can go back to
    complete: bool = False  # whether it has the whole gradient of the step to the next version
    # By version that it can go on from, epoch and first position of its batch, as far as known.
    places: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    @property
    def reachable(self) -> set[int]:
        """Return the versions that the shard can go on from."""
        return {self.version, *self.checkpoints, *([self.version + 1] if self.complete else [])}

    def __str__(self) -> str:
        if not self.initialised:
            return f"{self.name} has no parameters of this job"
        kept = ", ".join(map(str, self.checkpoints)) or "none"
        return f"{self.name} is at version {self.version}, its checkpoints: {kept}"


class Manager(Protocol):
    """The calls to the manager that recovery needs; `worker.membership.Membership` has them."""

    attempt: int
    is_between: bool  # whether the worker's script does something else, between two batches

    def recover(self, attempt: int) -> int:
        """Have an attempt after this one begun, and return its number."""
        ...

    def has_trained(self) -> bool:
        """Return whether the manager knows of a complete iteration."""
        ...

    def rewind(self, attempt: int, iteration: int, place: tuple[int, int] | None) -> Assignment | None:
        """Propose the first iteration of an attempt, and return the first assignment in it.

        Args:
            iteration: The iteration.
            place: Epoch and first position of its batch; None if the shards do not know.
        """
        ...

    def meet(
        self,
        attempt: int,
        steps: int,
        place: tuple[int, int] | None,
        store: str,
        formed: int | None,
        *,
        kept: bool,
    ) -> tuple[Assignment | None, Seat | None]:
        """Enter an attempt together with all other members, for which a group is formed."""
        ...


class ParameterServer(Protocol):
    """The calls to the shards that recovery needs; `worker.shard_clients.ShardClients` has them."""

    def fence(self, attempt: int) -> list[ShardState]:
        """Have the shards refuse calls of earlier attempts, and return their states."""
        ...

    def rewind(self, attempt: int, version: int, *, reset: bool = False) -> None:
        """Have the shards go on from a version; with `reset`, from parameters that are set again."""
        ...


def common_version(shards: Sequence[ShardState]) -> int | None:
    """Return the latest version that all shards can go on from; None if there is none."""
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
    log: FieldLog = log,
) -> Assignment | None:
    """Begin another attempt, or take part in it, and pull the parameters that it begins with.

    Args:
        manager: This worker's calls to the manager.
        shards: This worker's calls to the parameter server.
        error: The error by which the need of recovery was noticed.
        first: The iteration to begin with where nothing was trained yet; None if this worker has trained.
        timeout: Seconds for the whole recovery.
        log: A logger whose fields all log lines get.

    Returns:
        The first assignment of the attempt; None if this worker is released.

    Raises:
        InvalidRequestError: The shards have no version in common, and never will.
        DeadlineExceededError: The recovery did not succeed in time.
        EvenpaceError: A service is unreachable, or refuses.
    """
    log = log.of(__name__)
    log.warning("this worker goes through a recovery: %s", error)
    begun, differed = time.monotonic(), 0
    while True:
        # The manager began the attempt that the shard is in: ask for that one, not for one more.
        known = max(manager.attempt, error.attempt - 1)
        try:
            attempt = manager.recover(known)
            states = shards.fence(attempt)
            version = common_version(states)
            reset = version is None and first is not None and _is_untrained(manager, states, first)
            if reset:
                version = first
            if version is not None:
                assignment = manager.rewind(attempt, version, _place(states, version))
                if assignment is None:
                    return None
                shards.rewind(attempt, assignment.iteration, reset=reset)
                pull(assignment)
                log.warning("recovered: attempt %d, from iteration %d on", attempt, assignment.iteration)
                return assignment
        except RewoundError as again:
            error, differed = again, 0
        else:
            differed += 1
            forgotten = first is None and not all(state.initialised for state in states)
            if forgotten or differed > _TRIES:
                raise _no_common_version(states)
        if time.monotonic() - begun > timeout:
            raise DeadlineExceededError(f"no recovery within {timeout:g} s: {error}") from error
        time.sleep(_PAUSE)


def _place(shards: Sequence[ShardState], version: int) -> tuple[int, int] | None:
    """Return where the batch of a version begins, as the first shard that knows has it."""
    return next((shard.places[version] for shard in shards if version in shard.places), None)


def _is_untrained(manager: Manager, states: Sequence[ShardState], first: int) -> bool:
    """Return whether all shards' parameters are the first ones or missing, so that they may be set again."""
    return all(not s.initialised or s.version == first for s in states) and not manager.has_trained()


def _no_common_version(states: Sequence[ShardState]) -> InvalidRequestError:
    return InvalidRequestError(
        f"the parameter server's shards have no version in common, so that this job cannot go on "
        f"({'; '.join(map(str, states))}): start each shard with `evenpace ps --state DIR`, so that it keeps "
        f"checkpoints, and start it again with the same"
    )
