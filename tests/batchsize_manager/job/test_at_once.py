"""The two bounds of a worker: its share of a batch, and the micro-batches that it computes at once."""

from dataclasses import replace

import pytest

from batchsize_manager.job.config import JobConfig
from batchsize_manager.job.job import Job
from batchsize_manager.policies.even import Even
from idl.bounds import Bounds
from idl.errors import InvalidRequestError
from idl.plan import JobSpec
from idl.records import Report

SPEC = JobSpec(10_000, 48, micro_batch=4)


class AsManyAsAllowed(Even):
    """An even split, in which each worker computes as many micro-batches at once as it can."""

    def set_members(self, members):
        """Note the members' bounds."""
        super().set_members(members)
        self.most = [member.bounds.at_once for member in members]

    def split(self, total):
        """Split evenly, with the most at once."""
        return replace(super().split(total), at_once=self.most)


def job_of(*most, **config):
    """Make a job whose workers w0, w1, … can compute so many micro-batches at once."""
    job = Job(SPEC, JobConfig(workers=len(most), **config), AsManyAsAllowed())
    for number, at_once in enumerate(most):
        job.join(f"w{number}", f"w{number}", Bounds(maximum=40, at_once=at_once), 0.0)
    return job


def iterate(job, **reported):
    """Go through an iteration; return each member's (count, at_once)."""
    names = list(job.members)
    parts = {name: job.next_assignment(name, name) for name in names}
    for name, part in parts.items():
        job.report(name, name, Report(part.iteration, 1.0, at_once=reported.get(name)), 0.0)
    return [(part.count, part.at_once) for part in parts.values()]


def test_running_out_of_memory_lowers_the_number_at_once_and_not_the_share():
    """A member that computed fewer at once than assigned is assigned no more again, and keeps its share."""
    job = job_of(4, 8)
    assert iterate(job, w1=3) == [(24, 4), (24, 8)]
    assert job.members.by_name["w1"].bounds == Bounds(4, 40, 4, at_once=3)
    assert iterate(job) == iterate(job) == [(24, 4), (24, 3)]
    assert "w1 can compute 3 micro-batches at once at most" in job.outbox.events
    records = job.history(0, 10)
    assert [record.column("at_once").tolist() for record in records] == [[4, 3], [4, 3], [4, 3]]


def test_a_plan_that_was_made_before_does_not_raise_it_again():
    """Where it is planned ahead, a member may be assigned more until what it has is done."""
    job = job_of(4, 4, lookahead=2)
    seen = [iterate(job, w0=2) for _ in range(3)]
    assert seen == [[(24, 4), (24, 4)]] * 3
    assert iterate(job) == [(24, 2), (24, 4)]


def test_who_redoes_a_part_computes_as_many_at_once_as_it_can_itself():
    """The piece of a member that has gone has the number of its taker."""
    job = job_of(1, 8)
    job.next_assignment("w1", "w1")
    job.next_assignment("w0", "w0")
    job.report("w1", "w1", Report(0, 1.0), 0.0)
    job.leave("w0", "w0", 0.0)
    piece = job.next_assignment("w1", "w1")
    assert (piece.iteration, piece.count, piece.at_once) == (0, 24, 8)


def test_an_operator_changes_the_share_alone():
    """Other bounds leave the number at once as it is."""
    job = job_of(4, 8)
    job.operations.change_bounds("w1", Bounds(maximum=30), 0.0)
    assert job.members.by_name["w1"].bounds == Bounds(4, 28, 4, at_once=8)


def test_a_job_without_micro_batches_has_one_at_once():
    """Several are refused, with what to do."""
    job = Job(JobSpec(100, 20), JobConfig(), Even())
    with pytest.raises(InvalidRequestError, match="at_once 2: must be 1 in a job without micro-batches"):
        job.join("w", "w", Bounds(at_once=2), 0.0)
