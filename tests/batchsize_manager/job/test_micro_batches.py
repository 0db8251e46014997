"""A job in micro-batches: parts end on cuts, and bounds and policies go by whole micro-batches."""

import pytest

from batchsize_manager.job.config import JobConfig
from batchsize_manager.job.job import Job
from batchsize_manager.policies import make_job_policy, make_policy
from batchsize_manager.policies.base import PolicyWrapper
from idl.bounds import Bounds
from idl.errors import InvalidRequestError
from idl.plan import JobSpec
from idl.records import Report
from tests.batchsize_manager.job.driver import Driver


def driver(*names, micro_batch=4, **options):
    """Return a driver of a job in micro-batches."""
    return Driver(*names, micro_batch=micro_batch, **options)


def follow(job, speeds, iterations):
    """Let workers compute at speeds in samples per second; return their counts, by iteration."""
    counts = []
    for _ in range(iterations):
        parts = {name: job.next(name) for name in speeds}
        for name, speed in speeds.items():
            part = parts[name]
            job.now += 0.01
            job.report(name, part.iteration, seconds=max(part.count, 1) / speed)
        counts.append([parts[name].count for name in speeds])
    return counts


@pytest.mark.parametrize("policy", ["even", "proportional", "learned", "leader_straggler"])
@pytest.mark.parametrize("total", [40, 39])
def test_every_policy_gives_whole_micro_batches(policy, total):
    """Uneven speeds move micro-batches, and never a part of one; each batch is complete.

    The last one may be smaller than the others, which keeps no policy from learning.
    """
    job = driver("a", "b", "c", total=total, size=10 * total, policy=policy)
    counts = follow(job, {"a": 100.0, "b": 30.0, "c": 10.0}, 40)
    assert all(
        sum(row) == total and row[0] % 4 == row[1] % 4 == (row[2] + 40 - total) % 4 == 0 for row in counts
    )
    moved = [row for row in counts if row != counts[0]]
    assert bool(moved) == (policy != "even")
    assert policy == "even" or counts[-1][0] > counts[-1][1] >= counts[-1][2]


class Observing(PolicyWrapper):
    """A policy that keeps what it observes."""

    def observe(self, observations):
        """Keep the observations."""
        self.observed = observations


def test_policies_observe_the_times_of_whole_micro_batches():
    """Of 13 samples in fours one worker has 3 and 2: times grow with its samples, and P with the last 2."""
    policy = Observing(make_policy("even"))
    job = Job(JobSpec(26, 13, micro_batch=4), JobConfig(workers=2), policy)
    for name in "ab":
        job.join(name, name, Bounds(), 0.0)
    counts = [job.next_assignment(name, name).count for name in "ab"]
    assert counts == [8, 5]
    for name, count, last in zip("ab", counts, (4, 2), strict=True):
        times = {"batch_processing_time": 2.0 * count, "communication_time": 0.5 * count}
        times |= {"backward_time": 1.0 * last, "first_bucket_time": 0.25 * last}
        job.report(name, name, Report(0, **times, other_buckets_time=0.1, last_bucket_time=0.1), 1.0)
    for seen in policy.observed.values():
        assert seen.batch_size == 2
        assert seen.batch_processing_time == pytest.approx(16.0)
        assert seen.communication_time == pytest.approx(4.0)
        assert (seen.backward_time, seen.first_bucket_time) == (4.0, 1.0)
        assert seen.other_buckets_time == seen.last_bucket_time == 0.1


def test_bounds_are_narrowed_to_whole_micro_batches():
    """A maximum of 11 is two micro-batches of 4, a minimum of 1 is one."""
    job = driver("a", "b", total=32, size=320, bounds={"a": Bounds(1, 11)})
    assert (job.count("a"), job.count("b")) == (8, 24)
    job.finish("a", "b")
    job.job.operations.change_bounds("b", Bounds(17, 27), job.now)
    assert job.job.members.by_name["b"].bounds == Bounds(20, 24, 4)


def test_a_worker_that_cannot_take_a_micro_batch_is_refused():
    """The error names its maximum and what it has to be."""
    said = "maximum batch size 3: must be at least a micro-batch, 4 samples"
    with pytest.raises(InvalidRequestError, match=said):
        driver("a", total=32, bounds={"a": Bounds(1, 3)})
    job = driver("a", "b", total=32)
    with pytest.raises(InvalidRequestError, match=said):
        job.job.operations.change_bounds("b", Bounds(1, 3), job.now)


@pytest.mark.parametrize(
    ("total", "said"),
    [(20, "20 samples, 5 micro-batches of 4,"), (19, "19 samples, 5 micro-batches of 4,")],
)
def test_a_batch_that_does_not_fit_is_told_in_samples_and_micro_batches(total, said):
    """The error of a job whose workers cannot take the batch names the script's own figures."""
    bounds = dict.fromkeys("ab", Bounds(1, 11))
    job = driver("a", "b", total=total, bounds=bounds)
    assert job.job.attempts.failure == (
        f"a batch of {said} over 2 workers that can take at most 4 micro-batches together"
    )


def test_a_maximum_below_the_batch_is_rounded_down():
    """Of three micro-batches and a smaller fourth, 59 samples are no whole batch of 60."""
    spec = JobSpec(600, 60, micro_batch=16)
    assert [spec.narrowed(Bounds(1, most)).maximum for most in (16, 47, 48, 59, 60, 63, 64, 200)] == [
        *(16, 32, 48, 48, 64, 64, 64, 192)
    ]


def test_more_workers_than_micro_batches_are_refused_in_these_words():
    """The error names the batch, its micro-batches, and what to change."""
    said = (
        "with 'c' the workers take 3 micro-batches at least, .* but a batch of 60 samples in micro-batches "
        "of 32 has 2: make the batch larger"
    )
    with pytest.raises(InvalidRequestError, match=said):
        driver("a", "b", "c", total=60, size=600, micro_batch=32)


def test_a_resumed_job_starts_from_models_of_other_micro_batches():
    """The first split is that of the learned speeds, in the new micro-batches."""
    job = driver("a", "b", total=192, size=1920, policy="learned", micro_batch=4)
    follow(job, {"a": 300.0, "b": 100.0}, 30)
    models = job.job.planner.policy.models()
    other = Job(
        JobSpec(1920, 192, micro_batch=16), JobConfig(workers=2), make_job_policy("learned", models=models)
    )
    for name in "ab":
        other.join(name, name, Bounds(), 0.0)
    assert other.next_assignment("a", "a").count == 144


def test_speeds_are_predicted_in_samples():
    """A worker's predicted speed is in samples per second, whatever the micro-batch."""
    job = driver("a", "b", total=192, size=1920, policy="proportional", micro_batch=16)
    follow(job, {"a": 300.0, "b": 100.0}, 10)
    (record,) = job.job.history(9, 1)
    assert record.column("predicted_speed").tolist() == pytest.approx([300.0, 100.0])


def test_the_straggler_is_named_with_its_samples():
    """The warning, said once, counts samples, and a step of them in whole micro-batches."""
    job = driver("a", "b", total=16, size=160, policy="leader_straggler", micro_batch=8)
    follow(job, {"a": 300.0, "b": 100.0}, 10)
    said = "b is the straggler with 8 samples and cannot give up 8: "
    assert sum(said in event for event in job.job.outbox.events) == 1
