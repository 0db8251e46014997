"""ASP, SSP and backup workers: random events on the state machine, then real services and workers."""

import signal

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import idl
from batchsize_manager.job.config import JobConfig
from batchsize_manager.job.job import Job
from batchsize_manager.policies import make_policy
from evenpace.local.cluster import LocalCluster
from idl.bounds import Bounds
from idl.errors import InvalidRequestError
from idl.plan import JobSpec
from idl.records import Report
from idl.synchronisation import Synchronisation
from lab.observer import Observer
from tests.float64 import SCRIPT, train_alone, wait_for_end
from tests.scripts import freeze_and_run
from tests.services import (
    ShardWorker,
    is_frozen,
    open_request,
    serving,
    shard_service,
)
from tests.state_machines import driven
from tests.worker.processes import LEAST_SQUARES

# -- at random

NAMES = ["a", "b", "c", "d"]


class AnyMode(RuleBasedStateMachine):
    """Workers that join, work at any pace and leave, in any mode."""

    @initialize(
        mode=st.sampled_from(["ssp", "asp", "backup"]),
        number=st.integers(0, 3),
        workers=st.integers(1, 3),
        total=st.integers(4, 20),
        rest=st.integers(0, 40),
    )
    def begin(self, mode, number, workers, total, rest):
        """Make the job."""
        self.sync = Synchronisation(
            mode,
            number if mode == "ssp" else None,
            min(number + 1, workers) if mode == "backup" else None,
        )
        self.spec = JobSpec(total + rest, total)
        config = JobConfig(workers, report_timeout=20.0, reconnect_grace=5.0, synchronisation=self.sync)
        self.job = Job(self.spec, config, make_policy("even"))
        self.now = 0.0
        self.incarnations = 0
        self.alive = {}  # name to incarnation
        self.has = {}  # name to the assignment that it works on
        self.due = {}  # name to the iteration that it works on, or does next
        self.slices = {}  # (iteration, start) to who was given the slice
        self.given = {}  # iteration to the names and incarnations that were given samples of it
        self.reports = {}  # iteration to the names and incarnations that reported it

    def forget_gone(self):
        """Remove workers that were taken out."""
        for name in set(self.alive) - set(self.job.members):
            for of_names in (self.alive, self.has, self.due):
                of_names.pop(name, None)

    def ask_all(self):
        """Let all workers without work ask for some, as the service does for waiting ones."""
        for name, incarnation in self.alive.items():
            if name in self.has:
                continue
            assignment = self.job.next_assignment(name, incarnation)
            if assignment is None:
                assert not (self.sync.mode == "asp" and self.job.members.started)
                continue
            self.has[name] = assignment
            assert assignment.iteration >= self.due.get(name, 0)
            if self.sync.mode != "backup":
                assert self.due.get(name, assignment.iteration) == assignment.iteration
            self.due[name] = assignment.iteration
            if self.sync.mode == "ssp":
                assert assignment.iteration <= min(self.due.values()) + self.sync.staleness
            if self.sync.mode == "backup":
                assert assignment.iteration == self.job.iterations.planned - 1
            if assignment.count:
                who = (name, incarnation)
                assert self.slices.setdefault((assignment.iteration, assignment.start), who) == who
                self.given.setdefault(assignment.iteration, set()).add(who)

    def worker(self, data):
        """Draw a worker that is a member."""
        return data.draw(st.sampled_from(sorted(self.alive)))

    @precondition(lambda self: len(self.alive) < len(NAMES))
    @rule(data=st.data())
    def join(self, data):
        """Let a worker join under a free name."""
        name = data.draw(st.sampled_from([n for n in NAMES if n not in self.alive]))
        self.incarnations += 1
        self.job.join(name, f"i{self.incarnations}", Bounds(), self.now)
        self.alive[name] = f"i{self.incarnations}"
        self.ask_all()

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def leave(self, data):
        """Let a member leave."""
        name = self.worker(data)
        self.job.leave(name, self.alive[name], self.now)
        self.forget_gone()
        self.ask_all()

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def break_off(self, data):
        """Break a member's connection."""
        name = self.worker(data)
        self.job.disconnect(name, self.alive[name], self.now)

    @rule(seconds=st.sampled_from([0.5, 3.0, 30.0]))
    def tick(self, seconds):
        """Let time pass, so that gone or silent workers are taken out."""
        self.now += seconds
        self.job.tick(self.now)
        self.forget_gone()
        self.ask_all()

    @precondition(lambda self: self.has)
    @rule(data=st.data(), times=st.integers(1, 6))
    def work(self, data, times):
        """Let one member work for a while, as far as it has work."""
        name = data.draw(st.sampled_from(sorted(self.has)))
        for _ in range(times):
            if name not in self.has:
                break
            done = self.has.pop(name)
            self.due[name] = done.iteration + 1
            report = Report(done.iteration, 0.1 + done.count)
            self.now += 0.1
            self.job.report(name, self.alive[name], report, self.now)
            self.job.report(name, self.alive[name], report, self.now)
            self.reports.setdefault(done.iteration, set()).add((name, self.alive[name]))
            self.ask_all()

    @invariant()
    def nothing_is_stuck(self):
        """Some worker always has work once the job runs."""
        assert self.job.attempts.failure is None
        assert set(self.job.members) == set(self.alive)
        assert self.has or not (self.job.members.started and self.alive)

    @invariant()
    def history_has_each_iteration_once(self):
        """Iterations are complete in their order."""
        iterations = [record.iteration for record in self.job.history(0, 10**6)]
        assert iterations == list(range(len(iterations)))

    @invariant()
    def nobody_is_skipped_too_early(self):
        """A complete iteration has all reports, or in backup enough, of the remaining members."""
        enough = self.sync.replicas_to_aggregate or len(NAMES)
        for record in self.job.history(0, 10**6):
            given = self.given.get(record.iteration, set())
            reported = self.reports.get(record.iteration, set()) & given
            if len(reported) < enough:
                assert not {(name, self.alive.get(name)) for name, _ in given - reported} & given


AnyMode.TestCase.settings = driven(150, 40)
TestAnyMode = pytest.mark.machine(AnyMode.TestCase)


# -- real services


def test_workers_must_agree_on_the_mode():
    """A worker with another mode than the first, or none, gets an error with the job's mode."""
    with serving(shard_service()) as address:
        worker = ShardWorker(address)
        wire = idl.common.Synchronisation("asp")
        with pytest.raises(InvalidRequestError, match=r"runs with .*'bsp'.* wants .*'asp'"):
            worker.client.call("open", open_request(worker.identity, 1000, synchronisation=wire))
        worker.client.call("open", open_request(worker.identity, 1000))
        other = idl.common.Identity("other/run", "w", "i")
        for wrong, said in (
            (idl.common.Synchronisation("asp", 5), "staleness 5: belongs to ssp"),
            (idl.common.Synchronisation("backup"), "replicas_to_aggregate None"),
            (idl.common.Synchronisation(), "mode is missing"),
        ):
            with pytest.raises(InvalidRequestError, match=said):
                worker.client.call("open", open_request(other, 1000, synchronisation=wrong))
        worker.close()


def test_a_deterministic_shard_takes_bsp_only():
    """A deterministic shard refuses modes that depend on the order of arrival."""
    with serving(shard_service(deterministic=True)) as address:
        worker = ShardWorker(address)
        other = idl.common.Identity("other/run", "w", "i")
        wire = idl.common.Synchronisation("asp")
        with pytest.raises(InvalidRequestError, match=r"'asp'.*--deterministic"):
            worker.client.call("open", open_request(other, 1000, synchronisation=wire))
        worker.close()


# -- processes


@pytest.mark.ci
def test_one_asynchronous_worker_equals_training_alone(tmp_path, wait_until):
    """One worker is plain training, schedule included, to rounding."""
    with LocalCluster(tmp_path, sync="ssp", shards=2) as services:
        arguments = ["--optimizer", "adam", "--out", str(tmp_path / "w.npy"), "--num-workers", "1"]
        services.start_worker("w", SCRIPT, arguments)
        wait_for_end(services, wait_until)
    assert np.abs(np.load(tmp_path / "w.npy") - train_alone("adam")).max() < 1e-9


MODES = {
    "asp": {"sync": "asp"},
    "ssp": {"sync": "ssp", "staleness": 5},
    "backup": {"sync": "backup", "replicas_to_aggregate": 2},
}
KILLED, FROZEN = ({}, "w1 died"), ({"report_timeout": 20}, "w1 did not report")


@pytest.mark.simulated
@pytest.mark.parametrize(
    ("mode", "end"),
    [("asp", KILLED), ("backup", KILLED), ("ssp", FROZEN)],
    ids=["asp-killed", "backup-killed", "ssp-frozen"],
)
def test_the_others_go_on_in_every_mode(tmp_path, wait_until, mode, end):
    """A worker that is killed or frozen is taken out, and the others train to their end."""
    timeout, said = end
    with LocalCluster(tmp_path, workers=3, policy="even", **MODES[mode], **timeout) as services:
        # The others wait for w1 there: they might be through before it is at its point.
        started = {
            name: services.start_worker(
                name,
                freeze_and_run.__file__,
                [f"{iteration}:report:0", str(LEAST_SQUARES), "--out", str(tmp_path / f"{name}.npy")],
            )
            for name, iteration in (("w0", 12), ("w2", 12), ("w1", 10))
        }
        leaver = started.pop("w1").popen
        workers = list(started.values())
        for popen in (leaver, *(process.popen for process in workers)):
            wait_until(lambda p=popen: is_frozen(p), "all to be at their points")
        observer = Observer(services.manager, services.shard_addresses)

        def is_out():
            return observer.poll() and any(event.startswith(said) for event in observer.events)

        if end == KILLED:
            leaver.kill()
            wait_until(is_out, "the taking out")  # the others might be through before it
        for process in workers:
            process.popen.send_signal(signal.SIGCONT)
        for process in workers:
            wait_until(lambda p=process: p.popen.poll() is not None, "the end of training")
            assert process.popen.returncode == 0, process.failure()
        wait_until(is_out, "the taking out")
        # Records of what the others did after it may come later than that.
        wait_until(
            lambda: observer.poll() and set(observer.iterations[-1].workers) <= {"w0", "w2"},
            "the others' iterations",
        )
        observer.close()
    for name in ("w0", "w2"):
        assert np.isfinite(np.load(tmp_path / f"{name}.npy")).all()
