"""Recovery of a job at one iteration, after the manager, a shard or a worker has been restarted.

The shards may be at different versions, or have gone back; the manager may have forgotten the last plans. All
workers run `recover` at once, and agree on the same iteration.
"""

import time
from collections.abc import Callable, Sequence

from idl.errors import DeadlineExceededError, InvalidRequestError, RewoundError
from idl.plan import Assignment
from rpc.field_log import FieldLog
from worker.membership import Membership
from worker.messages import ShardState
from worker.shard_clients import ShardClients

log = FieldLog(__name__)

_PAUSE = 0.05  # seconds between tries
_TRIES = 200  # shards that other workers have already rewound may differ for a moment, which is no time that
# this worker was held up for: each try has to find them so, one after the other


def common_version(shards: Sequence[ShardState]) -> int | None:
    """Return the latest version that all shards can go on from; None if there is none.

    Where shards have a version's batch begin at different places, it is not the same for all: one has gone
    back meanwhile, and what its disk had removed is there again since the machine crashed.
    """
    if not all(shard.initialised for shard in shards):
        return None
    versions = set.intersection(*(shard.reachable for shard in shards))
    return max((version for version in versions if len(_places(shards, version)) <= 1), default=None)


def recover(
    manager: Membership,
    shards: ShardClients,
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
            states = shards.fence(attempt, manager.process)
            version = common_version(states)
            reset = version is None and first is not None and _is_untrained(manager, states, first)
            if reset:
                version = first
            if version is not None:
                place = next(iter(_places(states, version)), None)
                assignment = manager.rewind(attempt, version, place)
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


def _places(shards: Sequence[ShardState], version: int) -> set[tuple[int, int]]:
    """Return where the batch of a version begins, as shards have it that know."""
    return {shard.places[version] for shard in shards if version in shard.places}


def _is_untrained(manager: Membership, states: Sequence[ShardState], first: int) -> bool:
    """Return whether all shards' parameters are the first ones or missing, so that they may be set again."""
    return all(not s.initialised or s.version == first for s in states) and not manager.has_trained()


def _no_common_version(states: Sequence[ShardState]) -> InvalidRequestError:
    return InvalidRequestError(
        f"the parameter server's shards have no version in common, so that this job cannot go on "
        f"({'; '.join(map(str, states))}): start each shard with `evenpace ps --state DIR`, so that it keeps "
        f"checkpoints, and start it again with the same"
    )
