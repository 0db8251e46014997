"""What an operator does to a running job, event by event on a made-up clock."""

import numpy as np
import pytest

from batchsize_manager.job.config import JobConfig
from batchsize_manager.job.job import Job
from batchsize_manager.policies import POLICIES, PolicyOptions, make_job_policy, make_policy
from batchsize_manager.policies.proportional import Proportional
from idl.bounds import Bounds
from idl.errors import InvalidRequestError, NotMemberError
from idl.exchange import FIXED_GROUP
from idl.plan import JobSpec
from idl.synchronisation import Synchronisation
from predictors import PredictorOptions
from tests.batchsize_manager.job.driver import Beating, restored

SPEEDS = {"a": 3.0, "b": 1.0}  # seconds for a batch of whatever size


def policy_of(driver, name, **options):
    """Change a driver's policy."""
    policy = make_job_policy(name, PolicyOptions(**{"models": driver.job.planner.policy.models(), **options}))
    return driver.job.operations.change_policy(
        driver.job.operations.balancing, policy, "the policy", driver.now
    )


def learn(driver, iterations=6, noise=0.0):
    """Let `a` take three times as long for a sample as `b`."""
    jitter = np.random.default_rng(0).uniform(1 - noise, 1 + noise, iterations)
    for factor in jitter:
        parts = {name: driver.next(name) for name in "ab"}
        for name, part in parts.items():
            driver.report(name, part.iteration, SPEEDS[name] * part.count * factor)


# -- the policy


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("before", ["even", "proportional", "learned"])
def test_a_new_policy_knows_what_the_last_iterations_were_like(before, policy):
    """What was given stands; the next plan is the new policy's, which follows the speeds at once."""
    driver = Beating("a", "b", policy=before)
    learn(driver)
    given = driver.next("a")
    said = policy_of(driver, policy)
    assert said == "an operator has changed the policy, from iteration 7 on"
    assert driver.job.outbox.events[-1] == said
    assert driver.next("a") is given
    learn(driver, 1)
    counts = [driver.count(name) for name in "ab"]
    assert sum(counts) == 32
    if policy == "even":
        assert counts == [16, 16]
    elif policy == "proportional":
        assert counts[0] == pytest.approx(8, abs=1)
    elif policy == "learned":
        assert counts[0] < 12


def test_plans_that_nobody_has_seen_are_made_again():
    """With lookahead, those that somebody was given stay as they were; the others are the new policy's."""
    driver = Beating("a", "b", lookahead=2)
    for name in "ab":
        driver.report(name, driver.iteration(name), SPEEDS[name] * 16)
    first = driver.next("a")
    said = policy_of(driver, "proportional")
    assert said.endswith("from iteration 2 on")
    assert (first.iteration, driver.job.iterations.planned) == (1, 4)
    following = driver.job.assignments_after("a", 1)
    assert [(part.iteration, part.count) for part in following] == [(2, 8), (3, 8)]
    assert [driver.count(name) for name in "ab"] == [16, 16]


@pytest.mark.slow
def test_what_a_replaced_policy_learns_does_not_reach_the_new_one():
    """A fit that is under way is dropped when it comes back; the new policy's own is taken."""
    driver = Beating("a", "b")
    learning = PredictorOptions(first_fit=20, refit_every=100)
    policy_of(driver, "proportional", predictor="arima", learning=learning)
    learn(driver, 24, noise=0.2)
    old, fit = driver.job.planner.policy, driver.job.planner.policy.due_fit()
    weights = fit.run()
    policy_of(driver, "even")
    driver.job.planner.take_fit(old, weights)
    assert driver.job.planner.policy.due_fit() is None
    policy_of(driver, "proportional", predictor="arima", learning=learning)
    driver.job.planner.take_fit(old, weights)
    new = driver.job.planner.policy.due_fit()
    assert new is not None
    driver.job.planner.take_fit(driver.job.planner.policy, new.run())


def test_the_leader_goes_on_from_the_split_that_it_finds():
    """Alg. 2 moves samples step by step; it begins with those of the policy before it, not evenly."""
    driver = Beating("a", "b", policy="proportional")
    learn(driver)
    assert [driver.count(name) for name in "ab"] == [8, 24]
    policy_of(driver, "leader_straggler")
    learn(driver, 1)
    assert [driver.count(name) for name in "ab"] == [8, 24]


# -- the batch size


def drive(driver, iterations, *names):
    """Go on, through attempts if need be; each iteration's epoch, start, total and counts."""
    batches = []
    while len(batches) < iterations:
        if driver.job.attempts.is_recovering:
            for name in names:
                driver.rewind(name, driver.job.attempts.number, driver.job.iterations.first_open)
        parts = [driver.next(name) for name in names]
        batches.append((parts[0].epoch, parts[0].batch_start, parts[0].total, [p.count for p in parts]))
        for part, name in zip(parts, names, strict=True):
            driver.report_part(name, part)
    return batches


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_batches_of_another_size_begin_where_the_last_has_ended(policy):
    """The epoch goes on, nothing is done twice, and nobody has to go through a recovery."""
    driver = Beating("a", "b", policy=policy, total=16, size=100)
    drive(driver, 2, "a", "b")
    driver.next("a")
    said = driver.job.operations.change_batch_size(24, driver.now)
    assert said == "an operator has changed the batch size from 16 to 24, from iteration 3 on"
    assert driver.job.planner.batch_size == 24
    batches = drive(driver, 5, "a", "b")
    assert [batch[:3] for batch in batches] == [
        (0, 32, 16),
        (0, 48, 24),
        (0, 72, 24),
        (0, 96, 4),
        (1, 0, 24),
    ]
    assert all(sum(batch[3]) == batch[2] for batch in batches)
    assert [record.iteration for record in driver.job.history(0, 99)] == list(range(7))
    assert driver.job.attempts.number == 0


def test_a_batch_that_does_not_fit_is_refused():
    """With the reason, and nothing is changed."""
    bounds = {"a": Bounds(4, 40), "b": Bounds(4, 40)}
    driver = Beating("a", "b", total=16, size=100, bounds=bounds)
    events = list(driver.job.outbox.events)
    for size, why in (
        (0, "total_batch_size 0: must be from 1 to the dataset's size, 100"),
        (101, "total_batch_size 101: must be"),
        (7, "minimum batch sizes would sum to 8, more than the total batch size, 7"),
        (81, "could take 80 samples together at most, less than the total batch size, 81"),
    ):
        with pytest.raises(InvalidRequestError, match=why):
            driver.job.operations.change_batch_size(size, driver.now)
    assert driver.job.operations.change_batch_size(16, driver.now) == "the batch size is 16 already"
    assert (list(driver.job.outbox.events), driver.job.planner.batch_size, driver.job.attempts.number) == (
        events,
        16,
        0,
    )


def test_where_the_batch_follows_the_members_it_is_of_the_first():
    """With 24 samples for 2 workers, 3 have 36."""
    driver = Beating("a", "b", total=16, size=1000, scale_batch=True)
    drive(driver, 1, "a", "b")
    driver.join("c")
    drive(driver, 1, "a", "b", "c")
    driver.job.operations.change_batch_size(24, driver.now)
    assert (driver.job.planner.batches.total, driver.job.planner.batch_size) == (24, 36)
    assert [batch[1:3] for batch in drive(driver, 2, "a", "b", "c")] == [(40, 36), (76, 36)]


@pytest.mark.parametrize("mode", ["asp", "ssp", "backup"])
def test_other_modes_change_the_size_at_once(mode):
    """Their workers never go on by themselves."""
    kinds = {"ssp": {"staleness": 1}, "backup": {"replicas_to_aggregate": 2}}
    sync = Synchronisation(mode, **kinds.get(mode, {}))
    driver = Beating("a", "b", total=16, size=1000, synchronisation=sync)
    driver.finish("a", "b")
    driver.job.operations.change_batch_size(24, driver.now)
    for _ in range(4):
        driver.finish("a", "b")
    assert (driver.next("a").total, driver.job.attempts.number) == (24, 0)
    policy_of(driver, "proportional")
    driver.job.operations.drain("b", driver.now)
    for _ in range(4):
        if "b" in driver.job.members:
            driver.finish("b")
        driver.finish("a")
    assert list(driver.job.members) == ["a"]
    assert driver.job.members.why_released("b", "b") == "drained by an operator"
    assert driver.job.heartbeat("b", "b", 0, driver.now) is None  # one that was under way is no error
    assert driver.count("a") == 24


# -- bounds, and leaving


def test_bounds_hold_from_the_next_plan_on():
    """The present assignment stays as it is."""
    driver = Beating("a", "b", bounds={"a": Bounds(1, 20)})
    driver.next("a")
    said = driver.job.operations.change_bounds("a", Bounds(2, 6, 2), driver.now)
    assert said == "an operator has given a 2 to 6 samples, in multiples of 2, from iteration 1 on"
    assert driver.count("a") == 16
    driver.finish("a", "b")
    assert [driver.count(name) for name in "ab"] == [6, 26]


def test_a_drained_worker_finishes_what_it_was_given():
    """Then it is out, and may come again when it is started again."""
    driver = Beating("a", "b", lookahead=1)
    driver.next("a"), driver.job.assignments_after("a", 0)
    assert driver.job.operations.drain("b", driver.now) == "an operator has drained b, from iteration 2 on"
    assert driver.job.operations.drain("b", driver.now) == "b is leaving already"
    assert driver.job.members.standings(driver.now)[1].state == "leaving"
    driver.finish("b", "a")
    assert driver.next("b").iteration == 1
    assert driver.job.members.why_released("b", "b", known=1) == "drained by an operator"
    driver.finish("b", "a")
    assert list(driver.job.members) == ["a"]
    assert driver.count("a") == 32
    driver.report("b", 1)  # again: it is told that it was released
    assert driver.job.members.why_released("b", "b") == "drained by an operator"
    driver.join("b", "second")
    driver.finish("a", "a")
    assert driver.job.next_assignment("b", "second").count == 16


def test_a_worker_that_is_gone_is_taken_out_at_once():
    """Its part is done by the other, and its name is free; the last one is no exception."""
    driver = Beating("a", "b")
    driver.finish("a")
    said = driver.job.operations.remove("b", driver.now)
    assert said == "an operator has taken b out, which is gone"
    assert driver.span("a") == (0, 16, 16)
    driver.join("b", "second")
    with pytest.raises(NotMemberError, match="another start of it has its name now, as incarnation second"):
        driver.report("b", 0)
    for name in "ab":
        driver.job.operations.remove(name, driver.now)
    assert not driver.job.members
    assert not driver.job.has_ended
    driver.join("a", "third")
    assert list(driver.job.members) == ["a"]
    with pytest.raises(InvalidRequestError, match="no worker 'b'"):
        driver.job.operations.remove("b", driver.now)


def test_a_worker_that_the_others_cannot_do_without_is_not_drained():
    """Nor one that is no member, whose bounds cannot change, or one that reduces gradients with others."""
    driver = Beating("a", "b", bounds={"a": Bounds(1, 20)})
    with pytest.raises(InvalidRequestError, match="cannot take the batch of 32 samples without it"):
        driver.job.operations.drain("b", driver.now)
    for change in (
        lambda: driver.job.operations.drain("x", driver.now),
        lambda: driver.job.operations.change_bounds("x", Bounds(), driver.now),
    ):
        with pytest.raises(InvalidRequestError, match="no worker 'x'"):
            change()
    job = Job(JobSpec(100, 10), JobConfig(workers=2), make_policy("even"))
    for name in "ab":
        job.join(name, name, Bounds(), 0.0, exchange=FIXED_GROUP)
    with pytest.raises(InvalidRequestError, match="reduce gradients among themselves"):
        job.operations.drain("a", 0.0)


def test_a_drain_outlives_another_attempt_and_the_manager():
    """Who was to be released is so before the attempt's first iteration, and is told when it comes."""
    for again in (False, True):
        driver = Beating("a", "b")
        driver.next("a"), driver.next("b")
        driver.job.operations.drain("b", driver.now)
        if again:
            driver.job = restored(driver.job, JobConfig(workers=2))
        else:
            driver.job.recover("a", "a", 0, driver.now)
        driver.rewind("b", 1, 0, 100.0)
        driver.rewind("a", 1, 0, 100.0)
        assert list(driver.job.members) == ["a"]
        assert driver.job.members.why_released("b", "b") == "drained by an operator"
        assert driver.job.recover("b", "b", 0, 100.0) == 1
        assert driver.count("a") == 32


# -- pause


def test_a_paused_job_runs_dry_and_nobody_is_late():
    """Joins are taken and wait; an hour later it goes on, with everybody."""
    driver = Beating("a", "b", lookahead=1, report_timeout=60.0)
    driver.next("a"), driver.next("b")
    driver.job.operations.pause(driver.now)
    assert driver.job.state == "paused"
    assert driver.job.operations.pause(driver.now) == "the job is paused already"
    driver.finish("a", "b")
    driver.join("c")
    while (now := driver.now + 1.0) < 3600:
        for name in "abc":
            driver.job.heartbeat(name, name, 0, now)
        driver.tick_at(now)
    assert [driver.next(name) for name in "abc"] == [None] * 3
    assert list(driver.job.members) == ["a", "b", "c"]
    assert driver.job.operations.resume(driver.now) == "an operator has resumed the job"
    assert driver.job.operations.resume(driver.now) == "the job is not paused"
    driver.tick_at(driver.now + 1)
    assert list(driver.job.members) == ["a", "b", "c"]
    assert (driver.job.state, [driver.iteration(name) for name in "abc"]) == ("running", [1, 1, 1])


def test_a_job_may_be_changed_before_it_starts():
    """It begins as it is wanted, without another attempt."""
    driver = Beating("a", "b", total=16, size=100)
    driver.job = Job(JobSpec(100, 16), JobConfig(workers=2), make_policy("even"))
    driver.join("a")
    driver.job.operations.change_batch_size(24, 0.0)
    policy_of(driver, "proportional")
    driver.job.operations.pause(0.0)
    driver.join("b")
    assert driver.next("a") is None
    driver.job.operations.resume(0.0)
    assert (driver.count("a"), driver.job.attempts.number) == (12, 0)
    assert isinstance(driver.job.planner.policy.policy.policy, Proportional)
