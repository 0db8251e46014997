"""Carrying on with the last plan, and what is told again after a rewind: decisions without any service."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchsize_manager.plan import Assignment, JobSpec, make_plan
from rpc.errors import DeadlineExceededError, InvalidRequestError, RewoundError
from worker.carry_on import Alone, carried_on
from worker.layout import Group
from worker.options import Options
from worker.recovery import ShardState, common_version, recover

SPEC = JobSpec(dataset_size=100, total_batch_size=30)  # batches of 30, 30, 30 and 10


@st.composite
def plans(draw):
    """A job, and the plan of one of its iterations with any counts."""
    size = draw(st.integers(1, 1000))
    spec = JobSpec(size, draw(st.integers(1, size)))
    iteration = draw(st.integers(0, 50))
    epoch, start, total = spec.batch(iteration)
    cuts = sorted(draw(st.lists(st.integers(0, total), max_size=6)))
    counts = [end - begin for begin, end in itertools.pairwise([0, *cuts, total])]
    plan = make_plan(iteration, epoch, start, {f"w{i}": count for i, count in enumerate(counts)})
    return spec, plan


@given(plans(), st.integers(1, 20))
def test_carried_on_parts_tile_the_batch(made, further):
    """However the last plan was split, everybody's parts of a later batch follow each other and cover it."""
    spec, plan = made
    epoch, position, total = spec.batch(plan.iteration + further)
    end = position + total
    for share in plan.assignments.values():
        part = carried_on(spec, share, plan.iteration + further)
        assert (part.epoch, part.start, part.total) == (epoch, position, total)
        assert part.attempt == share.attempt
        position += part.count
    assert position == end


@given(plans(), st.integers(1, 20))
def test_a_batch_of_the_same_size_is_split_alike(made, further):
    """Where nothing has changed, the carried-on slice is the one that the same plan would give."""
    spec, plan = made
    if spec.batch(plan.iteration + further)[2] == plan.total:
        for share in plan.assignments.values():
            assert carried_on(spec, share, plan.iteration + further).count == share.count


def test_where_batches_change_their_size_nobody_carries_on():
    """A share of a batch that the job's specification does not know tells nothing of the next."""
    assert carried_on(SPEC, Assignment(1, 0, 40, 10, 40, batch_start=40), 2) is None


def test_a_further_slice_is_no_share_of_a_plan():
    """Who took a lost slice goes on alone with its own share, for as many iterations as are allowed."""
    alone = Alone(2)
    assert not alone.can_go_on(SPEC)
    alone.given(Assignment(0, 0, 10, 10, 30, batch_start=0))
    alone.given(Assignment(0, 0, 20, 5, 30, batch_start=0))
    alone.begin(ConnectionError("gone"))
    assert alone.go_on(SPEC) == Assignment(1, 0, 40, 10, 30, batch_start=30)
    assert alone.go_on(SPEC) == Assignment(2, 0, 70, 10, 30, batch_start=60)
    assert not alone.can_go_on(SPEC)


# -- options of the optimiser


def groups(rate):
    """Groups with a learning rate."""
    return (Group(3, {"lr": rate}),)


def test_options_are_told_when_they_change():
    """And with no other gradient, nor with a further slice of the same iteration."""
    options = Options()
    told = [options.due(i, groups(0.1 * i) if i % 2 else None) for i in range(5)]
    assert told == [None, groups(0.1), None, groups(0.1 * 3), None]
    assert options.due(5, groups(1.0)) == groups(1.0)
    assert options.due(5, None) is None


def test_after_a_rewind_each_iteration_has_its_own_options_again():
    """What the loop's schedule has come to meanwhile holds from the first iteration that is new."""
    options = Options()
    for iteration in range(6):
        options.due(iteration, groups(iteration) if iteration in {2, 4} else None)
    options.rewind(2)
    assert [options.due(2, groups(9.0)), *(options.due(i, None) for i in range(3, 8))] == [
        groups(2),
        None,
        groups(4),
        None,
        groups(9.0),
        None,
    ]


def test_options_of_an_iteration_in_which_this_worker_has_no_part_are_told_in_the_next():
    """Nobody else may be left who would tell them."""
    options = Options()
    for iteration in range(4):
        options.due(iteration, groups(iteration) if iteration == 2 else None)
    options.rewind(1)
    assert options.due(3, None) == groups(2)


# -- recovery


@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.lists(st.integers(0, 30), max_size=5)),
        min_size=1,
        max_size=4,
    )
)
def test_all_shards_can_go_back_to_the_common_version(shards):
    """It is the one where they are, if that is the same for all, else the latest that all have."""
    states = [ShardState(f"s{i}", True, v, tuple(sorted(kept))) for i, (v, kept) in enumerate(shards)]
    version = common_version(states)
    reachable = [{v, *kept} for v, kept in shards]
    if len({v for v, _ in shards}) == 1:
        assert version == shards[0][0]
    elif version is None:
        assert not set.intersection(*reachable)
    else:
        assert version == max(set.intersection(*reachable))


class Services:
    """A manager and two shards, as `recover` sees them, that do what a test says."""

    def __init__(self, *states, trained=True):
        self.attempt = 0
        self.states = states
        self.proposed = []
        self.asked = []
        self._trained = trained

    def recover(self, attempt):
        """See `worker.recovery.Manager`."""
        self.asked.append(attempt)
        return attempt + 1

    def has_trained(self):
        """See `worker.recovery.Manager`."""
        return self._trained

    def rewind(self, attempt, iteration):
        """See both of `worker.recovery`'s protocols."""
        self.proposed.append((attempt, iteration))
        return Assignment(iteration, 0, 0, 5, 10, attempt)

    def fence(self, attempt):
        """See `worker.recovery.ParameterServer`."""
        return list(self.states)


def run(services, first=None, pull=lambda assignment: None, timeout=60.0):
    """What `recover` comes to."""
    error = RewoundError("another attempt", 0)
    return recover(services, services, error, first, pull, timeout)


def test_shards_that_differ_go_back_to_what_both_have():
    """One that stepped once more goes back, too."""
    services = Services(ShardState("a", True, 7, (2, 5)), ShardState("b", True, 6, (2, 4)))
    assert run(services).iteration == 2
    assert services.proposed[0] == (1, 2)


def test_a_shard_without_parameters_is_a_final_error_that_says_what_to_do():
    """It names the shard and the option."""
    services = Services(ShardState("the shard at x:1", False, 0, ()), ShardState("b", True, 6, ()))
    with pytest.raises(InvalidRequestError, match=r"the shard at x:1 has no parameters .*--state DIR"):
        run(services)


def test_a_job_that_has_not_begun_begins_where_it_was_to():
    """If nothing was trained, nothing is missing; if something was, it is."""
    nothing = [ShardState(name, False, 0, ()) for name in ("a", "b")]
    assert run(Services(*nothing, trained=False), first=40).iteration == 40
    with pytest.raises(DeadlineExceededError):
        run(Services(*nothing, trained=True), first=40, timeout=0.3)


def test_a_later_attempt_meanwhile_is_joined():
    """Whoever is told of another attempt asks the manager for that one, and goes on there."""
    services = Services(ShardState("a", True, 3, ()))
    told = iter([RewoundError("again", 4)])

    def pull(assignment):
        for error in told:
            raise error

    assert run(services, pull=pull).attempt == 4
    assert services.asked == [0, 3]


def test_recovery_does_not_take_for_ever():
    """Not if each attempt is overtaken by another."""
    services = Services(ShardState("a", True, 3, ()))

    def pull(assignment):
        raise RewoundError("again", assignment.attempt + 1)

    with pytest.raises(DeadlineExceededError, match="no recovery within"):
        run(services, pull=pull, timeout=0.3)
