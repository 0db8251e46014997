"""Drives a job as a state machine: speaks for its workers, event by event on a made-up clock."""

from dataclasses import replace

from batchsize_manager.job.config import JobConfig
from batchsize_manager.job.job import Job
from batchsize_manager.job.restoration import restore_job
from batchsize_manager.policies import make_job_policy
from batchsize_manager.policies.base import PolicyWrapper
from batchsize_manager.policies.even import Even
from idl.bounds import Bounds
from idl.exchange import PARAMETER_SERVER
from idl.plan import JobSpec
from idl.records import Report
from idl.synchronisation import Synchronisation


class Choosy(PolicyWrapper):
    """Another policy, by which some workers only slow the job: those whose names are among `slow`."""

    def __init__(self, slow, policy=None):
        super().__init__(policy or Even())
        self.slow, self.names = slow, set()

    def set_members(self, members):
        """Note and set the members."""
        self.names = {member.name for member in members}
        super().set_members(members)

    def split(self, total):
        """Split as the other does, and name the slow ones."""
        slow = {name: f"{name} is slow" for name in sorted(self.names & set(self.slow))}
        return replace(super().split(total), dispensable=slow)


class Driver:
    """Speaks for the workers of one job; each worker's first incarnation is its name.

    Some of them promise to send heartbeats.
    """

    def __init__(
        self,
        *names,
        total=32,
        size=10**6,
        micro_batch=None,
        policy="even",
        bounds=None,
        promising=(),
        exchange=PARAMETER_SERVER,
        **config,
    ):
        self.now = 0.0
        self.job = Job(
            JobSpec(size, total, micro_batch=micro_batch),
            JobConfig(workers=len(names) or 1, **config),
            make_job_policy(policy),
        )
        self.exchange = exchange
        for name in names:
            self.join(name, bounds=(bounds or {}).get(name, Bounds()), beats=name in promising)

    def join(self, name, incarnation=None, bounds=None, *, beats=False):
        """Let a worker join now, and promise heartbeats or not."""
        self.job.join(
            name, incarnation or name, bounds or Bounds(), self.now, exchange=self.exchange, beats=beats
        )

    def next(self, name, incarnation=None):
        """Ask for a worker's next assignment."""
        return self.job.next_assignment(name, incarnation or name)

    def report(self, name, iteration, seconds=1.0, incarnation=None, waiting=0.0, communication=None):
        """Let a worker report now."""
        report = Report(iteration, seconds, waiting, communication_time=communication)
        self.job.report(name, incarnation or name, report, self.now)

    def count(self, name):
        """Return the count of a worker's next assignment, None without one."""
        assignment = self.next(name)
        return assignment and assignment.count

    def iteration(self, name):
        """Return the iteration of a worker's next assignment, None without one."""
        assignment = self.next(name)
        return assignment and assignment.iteration

    def finish(self, *names):
        """Let the workers take and report what is theirs next."""
        for name in names:
            self.report(name, self.iteration(name))

    def rewind(self, name, attempt, iteration, now=None):
        """Let a worker that is told of an attempt go on in it."""
        self.job.must_recover(name, name)
        self.job.rewind(name, name, attempt, iteration, self.now if now is None else now)

    def tick_at(self, now):
        """Move the clock and tick."""
        self.now = now
        self.job.tick(now)


class Beating(Driver):
    """A driver whose workers can send heartbeats."""

    def beat(self, *names, between=False):
        """Let workers send a heartbeat now."""
        for name in names:
            self.job.heartbeat(name, name, 0, self.now, between=between)

    def report_part(self, name, part, attempt=None):
        """Let a worker report the part that it names."""
        attempt = part.attempt if attempt is None else attempt
        self.job.report(name, name, Report(part.iteration, 1.0, attempt=attempt, start=part.start), self.now)

    def span(self, name):
        """Return iteration, first position and count of what a worker does next; None without anything."""
        part = self.next(name)
        return part and (part.iteration, part.start, part.count)

    def last_events(self, count):
        """Return what happened last, in words."""
        return list(self.job.outbox.events)[-count:]


def asp(*names, **config):
    """Workers that never wait."""
    return Driver(*names, synchronisation=Synchronisation("asp"), **config)


def ssp(*names, staleness, **config):
    """Make a job in mode ssp, whose workers wait for those that are too far behind."""
    return Driver(*names, synchronisation=Synchronisation("ssp", staleness), **config)


def backup(*names, replicas, **config):
    """Make a job in mode backup, whose steps take the first `replicas` gradients."""
    sync = Synchronisation("backup", replicas_to_aggregate=replicas)
    return Driver(*names, synchronisation=sync, **config)


def restored(job, config, policy="even", now=100.0, records=None, **changes):
    """Restore a job from the state of another, with some fields of the state changed."""
    return restore_job(
        replace(job.saved, **changes),
        config,
        make_job_policy(policy),
        records=job.history(0, 1000) if records is None else records,
        events=list(job.outbox.events),
        now=now,
    )
