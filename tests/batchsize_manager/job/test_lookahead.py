"""A job that plans ahead, at random: reports, joins, leaves, limits learned and releases in any order."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from batchsize_manager.job.config import JobConfig
from batchsize_manager.job.job import Job
from batchsize_manager.policies import Policy, Split
from batchsize_manager.policies.solver import split
from idl.bounds import Bounds
from idl.plan import JobSpec
from idl.records import Report
from tests.state_machines import driven

GRACE = 5.0  # seconds


class Even(Policy):
    """Splits evenly within the bounds, and says of whom a test names that they are dispensable."""

    def __init__(self):
        self.named = set()
        self._members = ()

    def set_members(self, members):
        """See `Policy`."""
        self._members = members

    def observe(self, observations):
        """See `Policy`."""

    def split(self, total):
        """See `Policy`."""
        counts = split([1.0] * len(self._members), total, [member.bounds for member in self._members])
        names = {member.name for member in self._members} & self.named
        return Split(counts, dispensable={name: f"{name} was named" for name in sorted(names)})


class Worker:
    """A worker as the job's service sees it: it reports in order, each time after the last answer."""

    def __init__(self, name):
        self.name = name
        self.known = -1  # the last iteration that it was given an assignment for
        self.given = {}  # its assignments, by iteration
        self.reported = -1
        self.waiting = True  # for an answer
        self.release = None

    def answer(self, job):
        """Take what the service would answer now."""
        self.release = job.members.why_released(self.name, self.name, self.known)
        if self.release is not None:
            self.waiting = False
            return
        assignment = job.next_assignment(self.name, self.name, self.known)
        if assignment is None:
            return
        self.waiting = False
        for part in [assignment, *job.assignments_after(self.name, assignment.iteration)]:
            assert part.iteration > self.known  # none is given twice
            assert not self.given or part.iteration == self.known + 1  # and none is left out
            self.given[part.iteration] = part
            self.known = part.iteration

    def to_report(self):
        """The next iteration that it has not reported, if it may report; or None."""
        following = [iteration for iteration in self.given if iteration > self.reported]
        return None if self.waiting or not following else min(following)


class LookaheadMachine(RuleBasedStateMachine):
    """The worker `w0` has no limit and stays, so that there is always a split."""

    @initialize(
        lookahead=st.integers(1, 4),
        workers=st.integers(1, 4),
        total=st.integers(1, 40),
        size=st.integers(1, 5),
    )
    def begin(self, lookahead, workers, total, size):
        """The first workers join."""
        workers = min(workers, total)
        self.now = 0.0
        self.policy = Even()
        self.spec = JobSpec(total * size, total)
        config = JobConfig(workers, lookahead, reconnect_grace=GRACE, release=True)
        self.job = Job(self.spec, config, self.policy)
        self.workers, self.gone = {}, []
        self.joined = 0
        for _ in range(workers):
            self.join()

    @rule()
    def join(self):
        """A worker with a name of its own comes, if its minimum fits."""
        if len(self.workers) >= self.spec.total_batch_size:
            return
        name = f"w{self.joined}"
        self.joined += 1
        self.job.join(name, name, Bounds(), self.now)
        self.workers[name] = Worker(name)
        self.settle()

    @rule(pick=st.integers(0), maximum=st.one_of(st.none(), st.integers(1, 20)))
    def report(self, pick, maximum):
        """A worker reports what is next for it, and maybe a limit."""
        able = [worker for worker in self.workers.values() if worker.to_report() is not None]
        if able:
            worker = able[pick % len(able)]
            self.report_of(worker, None if worker.name == "w0" else maximum)

    @precondition(lambda self: len(self.workers) > 1)
    @rule(pick=st.integers(0), dies=st.booleans())
    def go(self, pick, dies):
        """A worker leaves, or its connection breaks and it does not come back."""
        worker = list(self.workers.values())[1:][pick % (len(self.workers) - 1)]
        if worker.release is not None and worker.name not in self.job.members:
            return
        if dies:
            self.job.disconnect(worker.name, worker.name, self.now)
            self.now += GRACE
            self.job.tick(self.now)
        else:
            self.job.leave(worker.name, worker.name, self.now)
        self.gone.append(self.workers.pop(worker.name))
        self.settle()

    @precondition(lambda self: len(self.workers) > 1)
    @rule(pick=st.integers(0))
    def name_dispensable(self, pick):
        """The policy finds that the job is faster without a worker."""
        self.policy.named.add(list(self.workers)[1:][pick % (len(self.workers) - 1)])

    def report_of(self, worker, maximum=None):
        """Let a worker report, and answer whoever can be answered."""
        iteration = worker.to_report()
        self.now += 1.0
        self.job.report(worker.name, worker.name, Report(iteration, 1.0, maximum=maximum), self.now)
        worker.reported = iteration
        worker.waiting = True
        self.settle()

    def settle(self):
        """Answer as the service does, and note what was lost."""
        for name, worker in list(self.workers.items()):
            if worker.waiting:
                worker.answer(self.job)
            if worker.release is not None and worker.reported == worker.known:
                self.gone.append(self.workers.pop(name))
        if self.job.attempts.recovering:
            self.go_back(self.job.iterations.first_open)

    def go_back(self, iteration):
        """Let all recover: what they were given from there on does not count any more."""
        for worker in (*self.workers.values(), *self.gone):
            worker.given = {i: part for i, part in worker.given.items() if i < iteration}
        for name, worker in self.workers.items():
            if name in self.job.members:  # else it was released meanwhile
                attempt = self.job.must_recover(name, name)
                self.job.rewind(name, name, attempt, iteration, self.now)
            worker.known = worker.reported = iteration - 1
            worker.waiting = True
        for name, worker in list(self.workers.items()):
            worker.answer(self.job)
            if worker.release is not None and worker.reported == worker.known:
                self.gone.append(self.workers.pop(name))

    @invariant()
    def parts_do_not_overlap(self):
        """What workers have been given of an iteration lies apart, within its batch."""
        for iteration, parts in self.parts().items():
            epoch, start, total = self.spec.batch(iteration)
            position = start
            for part in sorted(parts, key=lambda part: (part.start, part.count)):
                assert (part.epoch, part.total) == (epoch, total)
                assert part.start >= position
                position = part.start + part.count
            assert position <= start + total

    @invariant()
    def the_job_can_go_on(self):
        """There is always somebody to take the batch."""
        assert self.job.attempts.failure is None

    def parts(self):
        """What was given to anybody, by iteration."""
        parts = {}
        for worker in (*self.workers.values(), *self.gone):
            for iteration, part in worker.given.items():
                parts.setdefault(iteration, set()).add(part)
        return parts

    def teardown(self):
        """Whatever has happened, the job goes on, and every batch up to there was covered."""
        if not hasattr(self, "job"):
            return
        while not self.job.members.started:
            self.join()
        goal = self.job.iterations.planned + 3
        for _ in range(100 * (1 + len(self.workers))):
            able = [worker for worker in self.workers.values() if worker.to_report() is not None]
            if self.job.iterations.planned >= goal:
                break
            assert able, "everybody waits, and nobody can report"
            self.report_of(min(able, key=Worker.to_report))
        assert self.job.iterations.planned >= goal
        complete = min(worker.reported for worker in self.workers.values())
        parts = self.parts()
        for iteration in range(complete + 1):
            total = self.spec.batch(iteration)[2]
            assert sum(part.count for part in parts[iteration]) == total


LookaheadMachine.TestCase.settings = driven(120, 40)
TestLookahead = pytest.mark.machine(LookaheadMachine.TestCase)


def test_a_limit_is_no_lower_than_what_the_others_leave():
    """A worker that could not take its part at once takes it in pieces: the job does not fail."""
    job = Job(JobSpec(100, 20), JobConfig(2), Even())
    job.join("a", "a", Bounds(maximum=12), 0.0)
    job.join("b", "b", Bounds(granularity=4), 0.0)
    job.report("a", "a", Report(0, 1.0), 0.0)
    job.report("b", "b", Report(0, 1.0, maximum=5), 0.0)
    assert job.attempts.failure is None
    assert [job.next_assignment(name, name).count for name in "ab"] == [12, 8]
    assert "b can take 5 samples at once at most, but the others leave it 8" in job.outbox.events


def _job_that_releases_b():
    """A job with a lookahead of 2 whose policy names b, after its first iteration; and the policy."""
    policy = Even()
    job = Job(JobSpec(100, 20), JobConfig(2, lookahead=2, release=True), policy)
    for name in "ab":
        job.join(name, name, Bounds(), 0.0)
    policy.named.add("b")
    for name in "ab":
        job.report(name, name, Report(0, 1.0), 0.0)
    return job, policy


def test_who_is_released_is_told_as_soon_as_it_knows_its_last_assignment():
    """Its reports are answered, so that it can go on to report the others that are planned."""
    job, _ = _job_that_releases_b()
    assert job.members.why_released("b", "b", known=1) is None
    assert job.members.why_released("b", "b", known=2) == "b was named"
    assert list(job.members) == ["a", "b"]
    for iteration in (1, 2):
        job.report("b", "b", Report(iteration, 1.0), 0.0)
    assert list(job.members) == ["a"]
    assert job.members.why_released("b", "b") == "b was named"


def test_who_was_to_be_released_is_needed_again_after_going_back():
    """In another attempt, a member is released only if the policy still finds it dispensable."""
    job, policy = _job_that_releases_b()
    assert job.members.why_released("b", "b", known=2) == "b was named"
    policy.named.clear()
    job.recover("a", "a", 0, 0.0)
    for name in "ab":
        job.rewind(name, name, job.must_recover(name, name), 1, 0.0)
    for iteration in range(1, 5):
        assert [job.next_assignment(name, name).count for name in "ab"] == [10, 10]
        for name in "ab":
            job.report(name, name, Report(iteration, 1.0), 0.0)
    assert list(job.members) == ["a", "b"]


def test_members_that_are_gone_may_be_released_before_they_are_taken_out():
    """One that was found dead with another may have been released when the other was taken out."""
    policy = Even()
    job = Job(JobSpec(100, 20), JobConfig(3, release=True), policy)
    for name in "abc":
        job.join(name, name, Bounds(), 0.0)
    policy.named.add("c")
    for name in "bc":
        job.disconnect(name, name, 0.0)
    job.tick(2.0)
    assert list(job.members) == ["a"]
    assert job.members.why_released("c", "c") == "c was named"
