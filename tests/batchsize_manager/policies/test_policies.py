"""Policies: examples worked by hand, and random cases."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchsize_manager.policies import (
    POLICIES,
    POLICIES_WITH_PREDICTOR,
    Participant,
    Policy,
    PolicyOptions,
    make_policy,
)
from batchsize_manager.policies.base import PolicyWrapper
from batchsize_manager.policies.leader_straggler import LeaderStraggler
from batchsize_manager.policies.proportional import Proportional
from idl.bounds import Bounds
from idl.records import WorkerRecord
from predictors.memoryless import Memoryless


def members(*names, **bounds):
    """Make members of these names, those in `bounds` with bounds of their own."""
    return [Participant(name, bounds.get(name, Bounds())) for name in names]


def policy_of(policy, *names, **bounds):
    """Give a policy its members."""
    policy.set_members(members(*names, **bounds))
    return policy


def observe(policy, counts, times, memory=None):
    """Let a policy observe, for each name, its count, its time and its memory usage."""
    memory = memory or {}
    policy.observe(
        {name: WorkerRecord(counts[name], times[name], memory_usage=memory.get(name, 0.0)) for name in counts}
    )


def iterate(policy, names, total, times, memory=None):
    """Split once, each worker taking its constant time, and return the counts."""
    counts = policy.split(total).counts
    observe(policy, dict(zip(names, counts, strict=True)), times, memory)
    return counts


# -- names


# -- Proportional (Alg. 1)


def test_proportional_memoryless_hand_worked():
    """Speeds of 10, 20 and 30 samples/s share 60 samples as 10, 20, 30; the last speed counts."""
    policy = policy_of(Proportional(Memoryless()), "a", "b", "c")
    observe(policy, {"a": 20, "b": 20, "c": 20}, {"a": 2.0, "b": 1.0, "c": 2 / 3})
    assert policy.split(60).counts == [10, 20, 30]

    observe(policy, {"a": 10, "b": 20, "c": 30}, {"a": 1 / 3, "b": 1.0, "c": 3.0})
    assert policy.split(60).counts == [30, 20, 10]


def test_proportional_speeds_belong_to_names():
    """A newcomer counts as the mean of the others until it is measured, in whatever order members come."""
    policy = policy_of(Proportional(Memoryless()), "a", "b")
    observe(policy, {"a": 10, "b": 30}, {"a": 1.0, "b": 1.0})
    policy.set_members(members("new", "b", "a"))
    assert policy.split(60).counts == [20, 30, 10]
    observe(policy, {"new": 60, "b": 30, "a": 10}, {"new": 1.0, "b": 1.0, "a": 1.0})
    assert policy.split(60).counts == [36, 18, 6]


@pytest.mark.parametrize("predictor", ["memoryless", "ema"])
def test_proportional_does_not_learn_from_no_samples(predictor):
    """An iteration without samples, or without a report, tells nothing about a worker's speed."""
    policy = policy_of(make_policy("proportional", PolicyOptions(predictor)), "a", "b")
    observe(policy, {"a": 10, "b": 30}, {"a": 1.0, "b": 1.0})
    observe(policy, {"a": 10, "b": 0}, {"a": 1.0, "b": 0.0})
    observe(policy, {"a": 10}, {"a": 1.0})

    assert policy.split(40).counts == [10, 30]


def test_proportional_keeps_a_split_within_the_tolerance():
    """As long as its slowest worker takes little longer, with the same total and members."""
    policy = policy_of(Proportional(Memoryless(), tolerance=0.1), "a", "b")
    assert policy.split(60).counts == [30, 30]
    observe(policy, {"a": 30, "b": 33}, {"a": 1.0, "b": 1.0})
    assert policy.split(60).counts == [30, 30]
    assert policy.split(63).counts == [30, 33]
    observe(policy, {"a": 20, "b": 40}, {"a": 1.0, "b": 1.0})
    assert policy.split(60).counts == [20, 40]
    observe(policy, {"a": 21, "b": 39}, {"a": 1.0, "b": 1.0})
    assert policy.split(60).counts == [20, 40]
    policy.set_members(members("a", "b"))
    assert policy.split(60).counts == [21, 39]


# -- LeaderStraggler (Alg. 2)

TWO = ["slow", "fast"]
TWO_TIMES = {"slow": 2.0, "fast": 1.0}


def test_splits_without_a_new_observation_do_not_move():
    """Only the first of several splits after one observation may move samples."""
    policy = policy_of(LeaderStraggler(), *TWO)
    for _ in range(5):
        iterate(policy, TWO, 64, TWO_TIMES)

    assert [policy.split(64).counts for _ in range(3)] == [[27, 37]] * 3


def test_leader_must_have_led_through_the_whole_window():
    """A worker behind once within the last five iterations gets nothing yet, but is fine-tuned."""
    policy = policy_of(LeaderStraggler(), *TWO)
    times = [TWO_TIMES] * 4 + [{"slow": 1.0, "fast": 2.0}] + [TWO_TIMES] * 4
    splits = [iterate(policy, TWO, 64, t) for t in times]

    assert splits == [[32, 32]] * 9
    assert (policy.step_size, policy.observation_window) == (1, 20)


def test_oscillation_switches_to_fine_tuning():
    """A leader turned straggler gives step 1, window 20, and 20 iterations without a move."""
    policy = policy_of(LeaderStraggler(), *TWO)
    for _ in range(6):
        iterate(policy, TWO, 64, TWO_TIMES)
    assert (policy.step_size, policy.observation_window) == (5, 5)
    turned = {"slow": 1.0, "fast": 2.0}
    splits = [iterate(policy, TWO, 64, turned) for _ in range(22)]

    assert (policy.step_size, policy.observation_window) == (1, 20)
    # The first split still follows the old order; then the window must fill with the new one.
    assert splits == [[22, 42]] * 20 + [[23, 41], [24, 40]]


def test_the_algorithm_begins_again_with_other_members():
    """Steps are as large as configured again after a third worker has joined during fine-tuning."""
    policy = policy_of(LeaderStraggler(step_size=4), *TWO)
    for times in (*[TWO_TIMES] * 6, *[{"slow": 1.0, "fast": 2.0}] * 22):
        iterate(policy, TWO, 64, times)
    assert (policy.step_size, policy.observation_window) == (1, 20)
    policy.set_members([Participant(name, Bounds(2)) for name in TWO])  # the same, with other bounds
    assert (policy.step_size, policy.observation_window) == (1, 20)
    three = [*TWO, "third"]
    policy.set_members([Participant(name, Bounds()) for name in three])
    assert (policy.step_size, policy.observation_window) == (4, 5)
    before = policy.split(64).counts
    for _ in range(5):
        iterate(policy, three, 64, {**TWO_TIMES, "third": 1.5})
    assert sorted(now - then for now, then in zip(policy.split(64).counts, before, strict=True)) == [-4, 0, 4]


def test_memory_guard_excludes_a_leader():
    """A worker that uses more than 95% of its memory gets no more; the next fastest leads."""
    names = ["a", "b", "c"]
    times = {"a": 3.0, "b": 2.0, "c": 1.0}
    policy = policy_of(LeaderStraggler(), *names)
    for _ in range(5):
        iterate(policy, names, 90, times, {"c": 0.96})
    assert policy.split(90).counts == [25, 35, 30]

    policy = policy_of(LeaderStraggler(), *names)
    for _ in range(5):
        iterate(policy, names, 90, times, {"c": 0.95})
    assert policy.split(90).counts == [25, 30, 35]


def test_warning_at_the_floor_names_the_straggler():
    """A straggler with no more than a step to give keeps its samples, and the user is told to remove it."""
    policy = policy_of(LeaderStraggler(), *TWO)
    splits = [iterate(policy, TWO, 30, TWO_TIMES) for _ in range(10)]
    split = policy.split(30)

    assert splits[4:] == [[15, 15], [10, 20], [5, 25], [5, 25], [5, 25], [5, 25]]
    assert split.counts == [5, 25]
    assert len(split.warnings) == 1
    assert split.warnings[0].startswith("slow is the straggler with 5 samples")
    assert "remove this straggler" in split.warnings[0]


@pytest.mark.parametrize(
    ("bounds", "reached"), [({"slow": Bounds(17)}, [17, 47]), ({"fast": Bounds(1, 42)}, [22, 42])]
)
def test_a_bound_may_be_reached_exactly(bounds, reached):
    """A straggler gives a step as long as its minimum remains (Alg. 2, line 8), and the leader has room."""
    policy = policy_of(LeaderStraggler(), *TWO, **bounds)
    splits = [iterate(policy, TWO, 64, TWO_TIMES) for _ in range(9)]

    assert splits[4:] == [[32, 32], [27, 37], [22, 42], reached, reached]


def test_observations_before_the_first_split_do_not_break_bounds():
    """A policy that takes over from another one keeps to the bounds at its first split."""
    policy = policy_of(LeaderStraggler(), *TWO, fast=Bounds(1, 20))
    policy.expect(64)
    policy.observe({name: WorkerRecord(32, seconds) for name, seconds in TWO_TIMES.items()})
    assert policy.split(64).counts == [44, 20]


def test_steps_are_multiples_of_both_granularities():
    """A step of 5 between granularities of 4 and 6 becomes 12."""
    policy = policy_of(LeaderStraggler(), *TWO, slow=Bounds(1, granularity=4), fast=Bounds(1, granularity=6))
    before = policy.split(96).counts
    for _ in range(5):
        iterate(policy, TWO, 96, TWO_TIMES)
    after = policy.split(96).counts

    assert before == [48, 48]
    assert after == [36, 60]


def test_short_batch_is_split_in_proportion_and_not_learned_from():
    """An epoch's last batch is split in the batch sizes' proportions, and its times do not count."""
    policy = policy_of(LeaderStraggler(), *TWO)
    for _ in range(5):
        iterate(policy, TWO, 60, TWO_TIMES)
    assert policy.split(60).counts == [25, 35]
    turned = {"slow": 1.0, "fast": 9.0}
    assert iterate(policy, TWO, 12, turned) == [5, 7]

    assert policy.split(60).counts == [25, 35]
    observe(policy, {"slow": 25, "fast": 35}, TWO_TIMES)
    assert policy.split(60).counts == [20, 40]
    assert policy.step_size == 5


def test_a_change_of_members_keeps_proportions_and_empties_the_window():
    """A newcomer gets the average, the others are scaled, and the window must fill again."""
    policy = policy_of(LeaderStraggler(), *TWO)
    for _ in range(5):
        iterate(policy, TWO, 60, TWO_TIMES)
    assert policy.split(60).counts == [25, 35]

    names = [*TWO, "new"]
    policy.set_members(members(*names))
    times = {**TWO_TIMES, "new": 1.5}
    splits = [iterate(policy, names, 60, times) for _ in range(6)]
    assert [sum(counts) for counts in splits] == [60] * 6
    assert splits[:5] == [splits[0]] * 5
    slow, fast, new = splits[0]  # shares of 25, 35 and 30 out of 90
    assert abs(slow - 50 / 3) < 1
    assert abs(fast - 70 / 3) < 1
    assert new == 20
    assert splits[5] == [slow - 5, fast + 5, new]

    policy.set_members(members("slow", "new"))
    assert sum(policy.split(60).counts) == 60


def test_report_that_lacks_a_member_is_not_learned_from():
    """An iteration that a member did not finish does not count for the window."""
    policy = policy_of(LeaderStraggler(), *TWO)
    for _ in range(9):
        policy.split(64)
        policy.observe({"slow": WorkerRecord(64, 2.0)})

    assert policy.split(64).counts == [32, 32]


# -- properties

CURVE = st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(1e-4, 1))


@st.composite
def clusters(draw):
    """Draw workers' curves and bounds, and a batch between the sums of minima and maxima."""
    curves = draw(st.lists(CURVE, min_size=1, max_size=6))
    limits = []
    for _ in curves:
        granularity = draw(st.sampled_from([1, 1, 2, 8]))
        minimum = draw(st.integers(1, 8))
        limits.append(Bounds(minimum, draw(st.integers(minimum + granularity, 200)), granularity))
    low = sum(bound.minimum for bound in limits)
    return curves, limits, draw(st.integers(low, sum(bound.maximum for bound in limits)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "predictor"),
    [*((name, "ema") for name in POLICIES), *((name, "memoryless") for name in POLICIES_WITH_PREDICTOR)],
)
@settings(deadline=None)
@given(clusters(), st.integers(0, 2**32), st.integers(0, 7))
def test_every_policy_keeps_sum_and_bounds(name, predictor, cluster, seed, short_every):
    """Splits keep sum and bounds on noisy increasing curves, short batches included."""
    curves, limits, total = cluster
    noise = random.Random(seed)
    policy = make_policy(name, PolicyOptions(predictor))
    policy.set_members([Participant(str(i), bound) for i, bound in enumerate(limits)])
    for iteration in range(40):
        short = short_every and iteration % (short_every + 1) == short_every
        size = noise.randint(1, total) if short else total
        counts = policy.split(size).counts
        assert sum(counts) == size
        assert all(0 <= count <= bound.maximum for count, bound in zip(counts, limits, strict=True))
        if size >= sum(bound.minimum for bound in limits):
            assert all(count >= bound.minimum for count, bound in zip(counts, limits, strict=True))
        policy.observe(
            {
                str(i): WorkerRecord(
                    count,
                    (max(floor, fixed + slope * count) + 1e-6) * noise.uniform(0.9, 1.1),
                    memory_usage=noise.uniform(0.5, 1.0),
                )
                for i, (count, (floor, fixed, slope)) in enumerate(zip(counts, curves, strict=True))
            }
        )


def test_wrappers_pass_every_method_on():
    """The base of wrappers passes every method of a policy on."""
    methods = {name for name, value in vars(Policy).items() if callable(value) and not name.startswith("_")}
    assert methods <= vars(PolicyWrapper).keys()
