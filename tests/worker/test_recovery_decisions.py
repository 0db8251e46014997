"""Decisions of a recovery, without any service."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idl.errors import DeadlineExceededError, InvalidRequestError, RewoundError
from idl.plan import Assignment
from worker.job_recovery import common_version, recover
from worker.messages import ShardState


@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.lists(st.integers(1, 10), max_size=5), st.booleans()),
        min_size=1,
        max_size=4,
    )
)
def test_the_job_goes_on_from_the_latest_version_that_all_shards_have(shards):
    """Shards can continue from their version, a checkpoint, or a complete next step."""
    kept = [[version - back for back in backs if back <= version] for version, backs, _ in shards]
    states = [
        ShardState(f"s{i}", True, version, tuple(sorted(kept[i])), complete)
        for i, (version, _, complete) in enumerate(shards)
    ]
    reachable = [
        {version, *kept[i]} | ({version + 1} if complete else set())
        for i, (version, _, complete) in enumerate(shards)
    ]
    assert common_version(states) == max(set.intersection(*reachable), default=None)
    if len({version for version, _, _ in shards}) == 1:
        assert common_version(states) >= shards[0][0]


def test_a_version_that_begins_elsewhere_is_another_one():
    """A shard whose disk has an old checkpoint again has no more than its number in common with others."""
    old, new, unknown = (
        ShardState(name, True, 5, (0, 5), places=places)
        for name, places in (("old", {5: (0, 80)}), ("new", {5: (0, 200)}), ("unknown", {}))
    )
    assert common_version([old, new]) == common_version([unknown, new, old]) == 0
    assert common_version([new, unknown, new]) == 5


class Services:
    """A made-up manager and two shards, as `recover` calls them."""

    def __init__(self, *states, trained=True):
        self.attempt, self.process = 0, "m"
        self.states = states
        self.proposed = []
        self.places = []
        self.asked = []
        self._trained = trained

    def recover(self, attempt):
        """Return the attempt, as `Membership.recover`."""
        self.asked.append(attempt)
        return attempt + 1

    def has_trained(self):
        """Return what the test says, as `Membership.has_trained`."""
        return self._trained

    def rewind(self, attempt, iteration, place=None, *, reset=False):
        """Note the rewind, as `Membership.rewind` and `ShardClients.rewind`."""
        self.reset = reset
        self.places.append(place)
        self.proposed.append((attempt, iteration))
        return Assignment(iteration, 0, 0, 5, 10, attempt)

    def fence(self, attempt, manager):
        """Return the shards' states, as `ShardClients.fence`."""
        return list(self.states)


def run(services, first=None, pull=lambda assignment: None, timeout=60.0):
    """Run `recover`, and return its result."""
    error = RewoundError("another attempt", 0)
    return recover(services, services, error, first, pull, timeout)


def test_a_shard_that_knows_says_where_the_batch_begins():
    """The manager is told the place of the batch that the job goes on with, by whichever shard knows it."""
    services = Services(
        ShardState("a", True, 7, (2, 5)), ShardState("b", True, 6, (2, 4), places={2: (1, 40), 6: (2, 8)})
    )
    run(services)
    assert services.proposed[0] == (1, 2)
    assert services.places[0] == (1, 40)


def test_a_shard_without_parameters_is_a_final_error_that_says_what_to_do():
    """The error names the shard that lacks parameters, and the option to set."""
    services = Services(ShardState("the shard at x:1", False, 0, ()), ShardState("b", True, 6, ()))
    with pytest.raises(InvalidRequestError, match=r"the shard at x:1 has no parameters .*--state DIR"):
        run(services)


def test_a_job_that_has_not_begun_begins_where_it_was_to():
    """If nothing was trained, the parameters are set again; if something was, they are missing."""
    nothing = [ShardState(name, False, 0, ()) for name in ("a", "b")]
    for states in (nothing, [ShardState("a", True, 40, ()), nothing[1]]):
        services = Services(*states, trained=False)
        assert run(services, first=40).iteration == 40
        assert services.reset
    with pytest.raises(DeadlineExceededError):
        run(Services(ShardState("a", True, 41, ()), nothing[1], trained=False), first=40, timeout=0.3)
    with pytest.raises(DeadlineExceededError):
        run(Services(*nothing, trained=True), first=40, timeout=0.3)


def test_a_later_attempt_meanwhile_is_joined():
    """A worker that learns of a later attempt asks the manager for that one, and continues there."""
    services = Services(ShardState("a", True, 3, ()))
    told = iter([RewoundError("again", 4)])

    def pull(assignment):
        for error in told:
            raise error

    assert run(services, pull=pull).attempt == 4
    assert services.asked == [0, 3]


def test_recovery_does_not_take_for_ever():
    """Recovery ends with an error if each attempt is overtaken by another."""
    services = Services(ShardState("a", True, 3, ()))

    def pull(assignment):
        raise RewoundError("again", assignment.attempt + 1)

    with pytest.raises(DeadlineExceededError, match="no recovery within"):
        run(services, pull=pull, timeout=0.3)


class HeldUp(Services):
    """Shards that differ at first, and a worker that is held up for a minute at each look at them."""

    def __init__(self, differing, monkeypatch):
        self._kept = iter([()] * differing)
        self._now = 0.0
        monkeypatch.setattr("worker.job_recovery.time", self)
        super().__init__()

    def monotonic(self):
        """Return seconds, as `time.monotonic`."""
        return self._now

    def sleep(self, seconds):
        """Let time pass, as `time.sleep`."""
        self._now += seconds

    def fence(self, attempt, manager):
        """Return states without a common version, as long as they differ."""
        self._now += 60.0
        return [ShardState("a", True, 7, next(self._kept, (6,))), ShardState("b", True, 6, ())]


def test_a_worker_that_is_held_up_does_not_take_shards_for_different(monkeypatch):
    """What it finds again and again counts, not how long that takes; but not for ever."""
    assert run(HeldUp(100, monkeypatch), timeout=1e6).iteration == 6
    with pytest.raises(InvalidRequestError, match="no version in common"):
        run(HeldUp(1000, monkeypatch), timeout=1e6)
