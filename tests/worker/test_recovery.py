"""Any process may be killed or frozen: training goes on, and ends with the parameters of one process."""

import contextlib
import signal
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from batchsize_manager.job.config import JobConfig
from batchsize_manager.service import ManagerConfig, ManagerService
from idl.endings import FINISHED
from idl.errors import NotMemberError
from lab.proxy import Proxy
from tests.services import (
    RestartableService,
    address_of_our_own,
    is_frozen,
    restartable_manager,
    serving,
    shard_service,
)
from tests.worker.least_squares import Worker, trained_alone
from tests.worker.processes import end_well, processes
from worker.shard_clients import ShardClients

ITERATIONS = 60
TWO_EVENLY = ("--workers", "2", "--policy", "even", "--silence", "60")  # whoever is held up keeps its part


def once(iteration, action):
    """Make a worker's `at`: an action at an iteration, the first time that it is reached."""
    left = [action]

    def at(session):
        if left and session.assignment.iteration >= iteration:
            left.pop()()

    return at


def assert_trained(workers, iterations=ITERATIONS):
    """Check that all workers end with the parameters of one process that takes whole batches."""
    for worker in workers:
        worker.end()
    for worker in workers:
        assert np.abs(worker.session.exchange.parameters - trained_alone(iterations)).max() < 1e-12


def in_process_manager(workers, policy="even", **job):
    """Start a manager in this process."""
    config = ManagerConfig(policy, job=JobConfig(workers=workers, **job))
    return serving(ManagerService(config), address=address_of_our_own())


# -- workers


@contextlib.contextmanager
def shards_here(folder, count=2, every=1):
    """Start shards in this process that keep checkpoints, and return their addresses."""
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(serving(shard_service(state=folder / f"ps-{i}", checkpoint_every=every)))
            for i in range(count)
        ]


OVERLAPPING = [
    # w0 has reported and waits; it freezes with the part of w1, which had frozen before and then comes back.
    pytest.param({"w1": "10:push:0", "w0": "10:push:1"}, "w1", id="one with the part of another"),
    # Likewise, and w2 never comes back.
    pytest.param(
        {"w1": "10:report:0", "w2": "10:push:0", "w0": "10:push:1"}, "w1", id="one of two that were silent"
    ),
    # Nobody is heard of for a while; each part of the iteration is with somebody who has not reported.
    pytest.param({"w0": "10:push:0", "w1": "10:report:0"}, "w1", id="both at once"),
]


@pytest.mark.simulated
@pytest.mark.parametrize("lookahead", [0, 1])
@pytest.mark.parametrize(("freeze", "thawed"), OVERLAPPING)
def test_one_that_comes_back_goes_on_without_those_that_stay_frozen(
    tmp_path, wait_until, freeze, thawed, lookahead
):
    """However freezes overlap, the job ends as long as one worker sends heartbeats."""
    config = {"heartbeat": 0.2, "silence": 1.0, "report_timeout": 5.0, "lookahead": lookahead}
    with (
        in_process_manager(len(freeze), **config) as manager,
        shards_here(tmp_path, count=1) as shards,
        processes(tmp_path, manager, shards, list(freeze), freeze) as workers,
    ):
        for name in freeze:
            wait_until(lambda name=name: is_frozen(workers[name]), f"{name} to be at its point")
        workers[thawed].send_signal(signal.SIGCONT)
        end_well(tmp_path, workers, wait_until, [thawed], trained_alone(60))
        assert all(is_frozen(workers[name]) for name in freeze.keys() - {thawed})


# -- the manager


@pytest.mark.simulated
def test_a_worker_that_opens_a_shard_that_was_started_again_has_the_job_go_back(
    tmp_path, monkeypatch, wait_until
):
    """A worker that opens a restarted shard recovers the job while all others wait for its part."""
    service = ManagerService(ManagerConfig("even", job=JobConfig(workers=1, silence=600.0)))
    opens, left = ShardClients.open, ["once"]
    with (
        serving(service) as manager,
        shards_here(tmp_path, count=1, every=5) as shards,
        RestartableService("ps", "--state", str(tmp_path / "killed"), "--checkpoint-every", "5") as killed,
    ):

        def open_late(self, layout, synchronisation, initial, assignment, *arguments, **options):
            if self._identity.worker == "w1" and left:
                left.clear()
                (managed,) = service.jobs
                others = managed.job.members.by_name["w0"]
                wait_until(lambda: others.reported == assignment.iteration, "the other one's report")
                killed.kill()
                killed.start()
            opens(self, layout, synchronisation, initial, assignment, *arguments, **options)

        monkeypatch.setattr(ShardClients, "open", open_late)
        addresses = [*shards, killed.address]
        there = once(
            12, lambda: wait_until(lambda: len(service.jobs[0].job.members) == 2, "the other worker")
        )
        first = Worker(manager, addresses, "w0", ITERATIONS, there)
        wait_until(lambda: len(first.done) == 12, "the iteration in which another joins")
        second = Worker(manager, addresses, "w1", ITERATIONS)
        assert_trained([first, second])


@pytest.mark.simulated
@pytest.mark.parametrize("lookahead", [0, 2])
def test_a_manager_that_restarts_during_a_push_costs_one_iteration_at_most(tmp_path, lookahead, wait_until):
    """A restart while only one of two shards has a gradient costs one iteration, even without checkpoints."""
    services = [shard_service(), shard_service()]
    with (
        restartable_manager(tmp_path / "state", *TWO_EVENLY, "--lookahead", str(lookahead)) as manager,
        serving(services[0]) as first,
        serving(services[1]) as second,
        Proxy() as proxy,
        ThreadPoolExecutor(1) as thread,
    ):
        link = proxy.add("second", second)

        def restart():
            (managed,) = services[0].jobs
            wait_until(lambda: managed.tally.pushes == 2 * 11, "both gradients at the first shard")
            manager.kill()
            manager.start()
            wait_until(lambda: managed.attempt, "another attempt")
            proxy.do(proxy.links["second"].open.set)

        def hold_up():
            proxy.do(proxy.links["second"].open.clear)
            restarting.append(thread.submit(restart))

        restarting = []
        workers = [
            Worker(manager.address, [first, address], f"w{i}", ITERATIONS, at)
            for i, (address, at) in enumerate([(link, once(10, hold_up)), (second, lambda session: None)])
        ]
        assert_trained(workers)
        restarting[0].result()
    for worker in workers:
        assert len(worker.done) <= ITERATIONS + 1 + lookahead


@pytest.mark.simulated
def test_who_waits_in_a_pull_learns_that_the_manager_has_forgotten_the_job():
    """Without --state, a worker in a pull learns from its heartbeat that the manager lost the job."""
    with RestartableService("manager", *TWO_EVENLY) as manager, serving(shard_service()) as shard:

        def again():
            manager.kill()
            manager.start()
            workers[0].join(240)  # which waits for this one's gradient

        workers = [
            Worker(manager.address, [shard], f"w{i}", ITERATIONS, at)
            for i, at in enumerate((lambda session: None, once(8, again)))
        ]
        for worker in workers:
            with pytest.raises(NotMemberError, match="there is no job 'default': join first"):
                worker.end()


@pytest.mark.simulated
@pytest.mark.parametrize("failed", [False, True])
def test_who_was_away_when_its_job_ended_ends_as_the_job_has(failed, wait_until):
    """Where the others have finished without it, nothing is left to do; elsewhere it ends by an error."""
    service = ManagerService(ManagerConfig("even", job=JobConfig(workers=2, reconnect_grace=0.1)))
    with serving(service) as manager, serving(shard_service()) as shard, Proxy() as proxy:
        away = proxy.add("away", manager)
        link = proxy.links["away"]

        def go_away():
            link.refusing = True
            proxy.do(link.cut)

        def fail():
            workers[0].session.failed = failed

        workers = [
            Worker(address, [shard], f"w{i}", ITERATIONS, at)
            for i, (address, at) in enumerate([(manager, once(9, fail)), (away, once(5, go_away))])
        ]
        workers[0].end()
        wait_until(lambda: service.ended, "the job's end")
        proxy.do(lambda: setattr(link, "refusing", False))
        if failed:
            with pytest.raises(NotMemberError, match="there is no job 'default': join first"):
                workers[1].end()
        else:
            assert len(workers[1].end()) < ITERATIONS
            assert workers[1].session.released == FINISHED
