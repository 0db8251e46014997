"""Operators' changes of running jobs, over real connections: training ends as that of one process."""

import contextlib
import itertools
import re

import numpy as np
import pytest

import idl
from batchsize_manager.client import ManagerClient
from batchsize_manager.job.batch_sizes import BatchChange
from batchsize_manager.service import ManagerConfig, ManagerService
from batchsize_manager.storage.state_reader import open_state
from idl.bounds import Bounds
from idl.errors import InvalidRequestError
from idl.layout import Group, Layout
from idl.plan import permutation
from rpc.client import Client
from tests.evenpace.commands import evenpace
from tests.scripts.train_least_squares import FEATURES, RATE, mean_gradient
from tests.services import (
    MemberWorker,
    join_request,
    manager_service,
    restartable_manager,
    serving,
    shard_service,
)
from tests.worker.least_squares import SPEC, Worker, services
from worker.data.slices import Slices
from worker.session import Session, SessionConfig
from worker.torch.loader import DataLoader

_wire = idl.batchsize_manager
_PATIENCE = 240.0  # seconds; a manager may be about to start again
ITERATIONS = 60
JOB = "default"


def trained_on(batches):
    """Return the parameters of one process that takes these batches: (epoch, start, total) of each."""
    parameters = np.zeros(FEATURES)
    for epoch, start, total in batches:
        parameters -= RATE * mean_gradient(parameters, permutation(SPEC, epoch)[start : start + total])
    return parameters


def batches_of(workers):
    """Return the batches by iteration, as (epoch, start, total); of a redone one, the last."""
    seen = {}
    for part in sorted((p for worker in workers for p in worker.done), key=lambda part: part.attempt):
        batch = part.attempt, (part.epoch, part.batch_start, part.total)
        before = seen.get(part.iteration, batch)
        assert before == batch or before[0] < batch[0]
        seen[part.iteration] = batch
    return [seen[iteration][1] for iteration in range(len(seen))]


def assert_follow(batches):
    """Check that batches go through one epoch after the other."""
    at = (0, 0)
    for epoch, start, total in batches:
        assert (epoch, start) == (at if at[1] < SPEC.dataset_size else (at[0] + 1, 0))
        at = (epoch, start + total)


def assert_trained(workers, iterations=ITERATIONS):
    """Check that all workers end with the parameters of one process on the same batches; return these."""
    for worker in workers:
        worker.end()
    batches = batches_of(workers)
    assert (
        len(batches) > iterations // 2
    )  # the loop ends after so many epochs, however many batches they have
    assert_follow(batches)
    for worker in workers:
        assert np.abs(worker.session.exchange.parameters - trained_on(batches)).max() < 1e-9
    return batches


def acts(*planned):
    """Return a callback that runs each action once, in order, as soon as its iteration is reached."""
    left = list(planned)

    def at(session):
        while left and session.assignment is not None and session.assignment.iteration >= left[0][0]:
            left.pop(0)[1]()

    return at


class Operator:
    """An operator that acts from any thread, each time through a connection of its own."""

    def __init__(self, manager):
        self._manager = manager

    def __getattr__(self, name):
        def act(*arguments):
            with ManagerClient(self._manager, timeout=_PATIENCE) as client:
                return getattr(client, name)(*arguments)

        return act


def assert_resized(batches, said):
    """Check that batches have another size from the iteration on that the operator was told."""
    changes = [
        (int(iteration), int(before), int(after))
        for before, after, iteration in (
            re.search(r"batch size from (\d+) to (\d+), from iteration (\d+) on", text).groups()
            for text in said
        )
    ]
    size = changes[0][1]
    for iteration, (_, start, total) in enumerate(batches):
        size = next((after for first, _, after in changes if first == iteration), size)
        assert total == min(size, SPEC.dataset_size - start)
    assert size == changes[-1][2]


def test_a_job_s_sizer_is_set_and_bounded_while_it_runs():
    """Options that are left out stay."""
    with serving(manager_service()) as address:
        worker = MemberWorker(address, "mine")
        with ManagerClient(address, timeout=_PATIENCE) as client:
            said = client.set_sizer("mine", "goodput", (5, 50))
            assert "from fixed to goodput, for batches of 5 to 50" in said
            said = client.set_sizer("mine", "similarity", None, None, 0.5)
            assert "from goodput to similarity, for batches of 5 to 50" in said
            assert "already" in client.set_sizer("mine", "similarity")
            assert client.status("mine").summary.sizer == "similarity"
        worker.close()


@pytest.mark.simulated
def test_changes_outlive_the_manager(tmp_path, wait_until):
    """A killed and restarted manager knows all changes: the job goes on with them, and is still paused."""
    with (
        restartable_manager(tmp_path / "state", "--workers", "2", "--policy", "even") as manager,
        serving(shard_service()) as shard,
    ):
        client = Operator(manager.address)

        def again():
            manager.kill()
            manager.start()

        def change():
            client.set_policy(JOB, "proportional", "memoryless", 0.1)
            client.set_total_batch_size(JOB, 24)
            client.set_bounds(JOB, "w1", Bounds(1, 10))
            again()

        at = acts((10, change), (30, again), (40, lambda: client.pause(JOB)))
        workers = [
            Worker(manager.address, [shard], f"w{i}", 80, at if i == 0 else lambda session: None)
            for i in range(2)
        ]
        wait_until(lambda: _state(client) == "paused", "the pause")
        wait_until(lambda: all(m.state == "waiting" for m in client.status(JOB).members), "all to wait")
        reached = client.status(JOB).summary.iteration
        again()
        wait_until(lambda: _state(client) == "paused", "the pause to be known again")
        wait_until(lambda: all(m.state == "waiting" for m in client.status(JOB).members), "all to wait")
        summary = client.status(JOB).summary
        assert summary.iteration == reached
        assert (summary.policy, summary.predictor, summary.batch_size) == ("proportional", "memoryless", 24)
        bounds = {member.worker: member.bounds for member in client.status(JOB).members}
        assert bounds["w1"] == _wire.Bounds(1, 10, 1)
        with open_state(tmp_path / "state") as reader:
            (run,) = reader.runs()
        assert (run.policy, run.state.batch_size, run.state.paused) == ("proportional", 24, True)
        assert run.state.batch_changes[0] == BatchChange(0, 0, 0, 16)
        client.resume(JOB)
        batches = assert_trained(workers, 80)
    assert {total for _, _, total in batches[20:]} >= {24}
    assert all(part.count <= 10 for part in workers[1].done if part.iteration > 20)


def _state(client):
    """Return the job's state; None before a worker has joined."""
    return client.status(JOB).summary.state if client.jobs().jobs else ""


def test_a_job_whose_size_was_changed_resumes_where_it_was():
    """A checkpoint has position and size of the next batch, from which the job goes on."""
    batches, state = [], None
    for save_at in (12, 16, 30):  # the second goes on with a size that it was not told of by an operator
        with (
            services(1) as (manager, shards),
            contextlib.closing(Session(SessionConfig(manager, tuple(shards), worker="w"))) as session,
        ):
            slices = Slices(SPEC.dataset_size, SPEC.total_batch_size, session, shuffle=True, seed=SPEC.seed)
            if state is not None:
                slices.load_state_dict(state)
            session.exchange.prepare(Layout("float64", "sgd", (Group(1, {"lr": 0.1}),)), np.zeros(1))
            session.start_training()
            for part in itertools.chain.from_iterable(itertools.repeat(slices, ITERATIONS)):
                if part.assignment.iteration == 5:
                    Operator(manager).set_total_batch_size(JOB, 24)
                if part.assignment.iteration == save_at:
                    state = slices.state_dict()
                    break
                session.finish_iteration()
                batches.append((part.assignment.epoch, part.assignment.batch_start, part.assignment.total))
    assert len(batches) == 30
    assert_follow(batches)
    assert_resized(batches, ["batch size from 16 to 24, from iteration 6 on"])


def test_a_batch_size_that_no_job_can_go_on_with_is_refused():
    """The error names the value and what is allowed; no job is made."""
    with serving(manager_service()) as address:
        client = Client(_wire.BatchSizeManager, address, "manager")
        for size in (0, 1001):
            request = join_request(idl.common.Identity("j", "w", "i"))
            request.resume = _wire.Resume(iteration=3, total_batch_size=size)
            with pytest.raises(InvalidRequestError, match=rf"resume\.total_batch_size {size}: .* 1 to 1000"):
                client.call("join", request)
        client.close()


@pytest.mark.parametrize(
    ("size", "drop_last", "num_workers", "expected"),
    [
        (16, False, 1, [[7] * 4 + [9] * 5, [13] * 2 + [4] * 2, [2] * 2]),
        (16, True, 0, [[6] * 4 + [8] * 4, [12] * 3 + [4], [2] * 2]),
        ({0: 10, 1: 30, 3: 100}, False, 1, [[10] * 10, [4] * 4, [4] * 4, [1]]),
    ],
    ids=["an operator", "an operator, drop_last", "a schedule"],
)
def test_a_loader_says_how_many_batches_the_epoch_has(size, drop_last, num_workers, expected):
    """The length is that of the batches so far and of the present rest; each sample comes once."""
    samples = list(range(100))
    with services(1) as (manager, shards):
        client = Operator(manager)
        at = acts(
            (3, lambda: client.set_total_batch_size(JOB, 8)),
            (10, lambda: client.set_total_batch_size(JOB, 50)),
        )
        with contextlib.closing(Session(SessionConfig(manager, tuple(shards), worker="w"))) as session:
            loader = DataLoader(
                samples, size, session=session, shuffle=True, drop_last=drop_last, num_workers=num_workers
            )
            assert len(loader) == expected[0][0]
            session.exchange.prepare(Layout("float64", "sgd", (Group(1, {"lr": 0.1}),)), np.zeros(1))
            session.start_training()
            for lengths in expected:
                seen, drawn = [], []
                for batch in loader:
                    seen.append(len(loader))
                    drawn += batch.tolist()
                    if size == 16:
                        at(session)
                    session.finish_iteration()
                assert seen == lengths
                assert len(drawn) == len(set(drawn))
                assert drop_last or sorted(drawn) == samples


# -- refusals


@pytest.fixture(scope="module")
def running():
    """A manager with a job of one idle worker."""
    with serving(manager_service(reconnect_grace=60.0)) as address:
        worker = MemberWorker(address, "mine")
        with ManagerClient(address, timeout=_PATIENCE) as client:
            yield address, client
        worker.close()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            {},
            "give exactly one of balancing, sizing, total_batch_size, bounds, drain, paused, gone, resizing, "
            "not none",
        ),
        ({"paused": True, "total_batch_size": 5}, "not total_batch_size and paused"),
        ({"paused": True, "worker": "good"}, "worker: belongs to bounds, drain or gone, not to paused"),
        ({"drain": True}, "worker is missing or not of its type"),
        ({"drain": False, "worker": "good"}, "drain false"),
        ({"gone": False, "worker": "good"}, "gone false"),
        ({"gone": True, "worker": "nobody"}, "there is no worker 'nobody' in this job"),
        ({"drain": True, "worker": "nobody"}, "there is no worker 'nobody' in this job"),
        ({"drain": True, "worker": "good"}, "the others cannot take the batch"),
        ({"bounds": _wire.Bounds(1, 10, 1)}, "worker is missing"),
        ({"bounds": _wire.Bounds(1, 5, 1), "worker": "good"}, "could take 5 samples together at most"),
        ({"bounds": _wire.Bounds(5, 4, 1), "worker": "good"}, "maximum batch size 4: must be at least"),
        ({"bounds": _wire.Bounds(1, 2**62, 2**61), "worker": "good"}, "granularity"),
        ({"bounds": _wire.Bounds(1), "worker": "good"}, "maximum is missing"),
        ({"total_batch_size": 0}, "total_batch_size 0: must be an integer from 1 to 1000"),
        ({"total_batch_size": 1001}, "from 1 to 1000"),
        ({"balancing": _wire.Balancing()}, "policy is missing or not of its type"),
        ({"balancing": _wire.Balancing("x" * 10**6)}, "policy 'xxx"),
        (
            {"balancing": _wire.Balancing("nonsense")},
            "policy 'nonsense': there are even, proportional, leader_straggler, learned",
        ),
        (
            {"balancing": _wire.Balancing("proportional", "nonsense")},
            "predictor 'nonsense': there are memoryless, ema",
        ),
        (
            {"balancing": _wire.Balancing("even", "ema")},
            "predictor 'ema': policy even has none, only proportional",
        ),
        (
            {"balancing": _wire.Balancing("proportional", "ema", 1.0)},
            "tolerance 1.0: must be at least 0 and below 1",
        ),
        (
            {"balancing": _wire.Balancing("proportional", "ema", float("nan"))},
            "tolerance nan: must be a finite number from 0 to 1",
        ),
        ({"sizing": _wire.Sizing("x")}, "sizer 'x': there are fixed, schedule, goodput, similarity"),
        ({"sizing": _wire.Sizing("schedule")}, "the script has none"),
        ({"sizing": _wire.Sizing("goodput", 5)}, "give both of least and most, or none"),
        ({"sizing": _wire.Sizing("goodput", 0, 5)}, "sizing.least 0: must be an integer from 1 to 1000"),
        ({"sizing": _wire.Sizing("goodput", 5, 4)}, "sizing.most 4: must be an integer from 5"),
        (
            {"sizing": _wire.Sizing("goodput", promise=1.5)},
            "sizing.promise 1.5: must be a finite number from 0 to 1",
        ),
        (
            {"sizing": _wire.Sizing("similarity", similarity=1.0)},
            "similarity 1.0: must be above 0 and below 1",
        ),
        ({"resizing": _wire.Resizing()}, "resizing.workers is missing or not of its type"),
        ({"resizing": _wire.Resizing(0)}, "resizing.workers 0: must be an integer from 1 to"),
        ({"resizing": _wire.Resizing(2**40)}, "resizing.workers 1099511627776: must be an integer from 1 to"),
        ({"resizing": _wire.Resizing(11)}, "workers 11: a batch of 10 samples is too small for so many"),
        ({"resizing": _wire.Resizing(1, [""])}, "resizing.drain ''"),
        ({"resizing": _wire.Resizing(1, ["x"])}, "no worker 'x'"),
        ({"resizing": _wire.Resizing(1), "worker": "w"}, "worker: belongs to bounds, drain or gone"),
    ],
)
def test_requests_that_make_no_sense_are_refused(running, change, why):
    """Each invalid request is refused with the reason, and the job is as it was."""
    _, client = running
    before = client.status("mine")
    with pytest.raises(InvalidRequestError, match=why):
        client._call("control", _wire.ControlRequest(job="mine", **change))
    after = client.status("mine")
    assert (after.members[0].bounds, after.events) == (before.members[0].bounds, before.events)
    assert (after.summary.state, after.summary.batch_size) == ("running", 10)


def test_jobs_that_are_over_or_unknown_cannot_be_changed():
    """The error says whether the job is over or unknown."""
    with serving(manager_service()) as address, ManagerClient(address) as client:
        with pytest.raises(InvalidRequestError, match="there is no job 'nothing'"):
            client.pause("nothing")
        MemberWorker(address, "over").close()
        with pytest.raises(
            InvalidRequestError, match="cannot be changed any more: all workers have finished"
        ):
            client.pause("over")


# -- on the command line


@pytest.mark.ci
def test_the_command_line_changes_a_job(tmp_path):
    """Each command prints what was done; a mistake is one line, and status 1."""
    with serving(ManagerService(ManagerConfig(state=tmp_path))) as address:
        worker = MemberWorker(address, "mine")
        there = ("--manager", str(address))
        for arguments, printed in (
            (("policy", "mine", "learned"), "the policy from proportional to learned, from iteration 1 on"),
            (("bounds", "mine", "good", "--maximum", "64"), "given good 1 to 64 samples, in multiples of 1"),
            (("pause", "mine"), "an operator has paused the job, from iteration 1 on"),
            (("resume", "mine"), "an operator has resumed the job"),
            (("batch-size", "mine", "20"), "the batch size from 10 to 20, from iteration 1 on"),
            (
                ("sizer", "mine", "goodput", "--batch-size", "5:50"),
                "the sizer from fixed to goodput, for batches",
            ),
            (
                ("sizer", "mine", "fixed", "--promise", "0.1"),
                "the sizer from goodput to fixed, from iteration 1",
            ),
        ):
            done = evenpace("job", *arguments, *there)
            assert (done.returncode, done.stderr) == (0, "")
            assert printed in done.stdout
        for arguments, error in (
            (("drain", "mine", "good"), "Error: worker 'good' cannot be drained: the others cannot take"),
            (("bounds", "mine", "x", "--minimum", "2"), "Error: there is no worker 'x' in this job"),
            (("pause", "nothing"), "Error: there is no job 'nothing'"),
            (
                ("batch-size", "mine", f"1{'0' * 20}"),
                "Error: total_batch_size '100000000000000000000': must be a",
            ),
            (
                ("sizer", "mine", "goodput", "--batch-size", "5"),
                "Error: batch_size 5: give the least and the most",
            ),
        ):
            done = evenpace("job", *arguments, *there)
            assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, "", 1)
            assert done.stderr.startswith(error)
        worker.client.close()
