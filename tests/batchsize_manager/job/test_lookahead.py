"""Members that the policy finds dispensable, and that have learned limits, in jobs that plan ahead."""

from batchsize_manager.job.config import JobConfig
from batchsize_manager.job.job import Job
from idl.bounds import Bounds
from idl.plan import JobSpec
from idl.records import Report
from tests.batchsize_manager.job.driver import Choosy


def test_a_limit_is_no_lower_than_what_the_others_leave():
    """A worker that could not take its part at once takes it in pieces: the job does not fail."""
    job = Job(JobSpec(100, 20), JobConfig(2), Choosy(set()))
    job.join("a", "a", Bounds(maximum=12), 0.0)
    job.join("b", "b", Bounds(granularity=4), 0.0)
    job.report("a", "a", Report(0, 1.0), 0.0)
    job.report("b", "b", Report(0, 1.0, maximum=5), 0.0)
    assert job.attempts.failure is None
    assert [job.next_assignment(name, name).count for name in "ab"] == [12, 8]
    assert "b can take 5 samples at once at most, but the others leave it 8" in job.outbox.events


def test_who_is_released_is_told_as_soon_as_it_knows_its_last_assignment():
    """Its reports are answered, so that it can go on to report the others that are planned."""
    policy = Choosy(set())
    job = Job(JobSpec(100, 20), JobConfig(2, lookahead=2, release=True), policy)
    for name in "ab":
        job.join(name, name, Bounds(), 0.0)
    policy.slow.add("b")
    for name in "ab":
        job.report(name, name, Report(0, 1.0), 0.0)
    assert job.members.why_released("b", "b", known=1) is None
    assert job.members.why_released("b", "b", known=2) == "b is slow"
    assert list(job.members) == ["a", "b"]
    for iteration in (1, 2):
        job.report("b", "b", Report(iteration, 1.0), 0.0)
    assert list(job.members) == ["a"]
    assert job.members.why_released("b", "b") == "b is slow"
