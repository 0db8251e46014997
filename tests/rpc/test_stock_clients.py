"""Stock Thrift clients, Apache's and thriftpy2's, take part in training without any code of evenpace."""

import contextlib
import functools
import shutil
import struct
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import thriftpy2
from thriftpy2.protocol import TBinaryProtocolFactory
from thriftpy2.rpc import make_client
from thriftpy2.transport import TFramedTransportFactory

from batchsize_manager.client import ManagerClient
from idl.plan import JobSpec, permutation
from ps import service as ps_service
from rpc.address import Address
from tests import ROOT
from tests.rpc import apache_client
from tests.services import manager_process, manager_service, serving, shard_process, shard_service

IDL = ROOT / "idl"
FILES = ("batchsize_manager", "parameter_server")
ITERATIONS = 4
BATCH, DATASET = 24, 60  # batches of 24, 24 and 12 samples, so that the last has another total
LEARNING_RATE = 0.25

thriftpy2_manager = thriftpy2.load(str(IDL / "batchsize_manager.thrift"), module_name="stock_manager_thrift")
thriftpy2_shard = thriftpy2.load(str(IDL / "parameter_server.thrift"), module_name="stock_shard_thrift")


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[Address, Address]]:
    """Start a manager whose jobs begin with two workers, and a parameter server, as real processes."""
    with manager_process("--workers", "2") as manager, shard_process() as shard:
        yield manager, shard


def apache(manager: Address, shard: Address) -> tuple[Any, Any, Any, Any]:
    """Return the structs of Apache Thrift, and a function that connects clients."""
    clients = [functools.partial(apache_client.ApacheClient, *address) for address in (manager, shard)]
    return apache_client, apache_client, *clients


def thriftpy2_framed(manager: Address, shard: Address) -> tuple[Any, Any, Any, Any]:
    """Return the structs of thriftpy2, and a function that connects clients, in pure Python."""
    clients = [
        functools.partial(
            make_client,
            service,
            *address,
            proto_factory=TBinaryProtocolFactory(),
            trans_factory=TFramedTransportFactory(),
            timeout=120_000,
        )
        for service, address in (
            (thriftpy2_manager.BatchSizeManager, manager),
            (thriftpy2_shard.ParameterServer, shard),
        )
    ]
    return thriftpy2_manager, thriftpy2_shard, *clients


KINDS: dict[str, Callable[[Address, Address], tuple[Any, Any, Any, Any]]] = {
    "apache": apache,
    "thriftpy2": thriftpy2_framed,
}


def initial_parameters(elements: int) -> np.ndarray:
    """Return the parameters that the job starts from, (elements,)."""
    return np.random.default_rng(0).normal(size=elements)


def gradient_of(worker: str, iteration: int, elements: int) -> np.ndarray:
    """Return the gradient that `worker` pushes in `iteration`, (elements,)."""
    return np.random.default_rng([ord(worker), iteration]).normal(size=elements)


def train(kind: str, cluster: tuple[Address, Address], job: str, worker: str, elements: int) -> dict:
    """Take part in a job from join to leave; return the assignments and the parameters after each step."""
    mt, pt, connect, connect_to_shard = KINDS[kind](*cluster)
    manager = connect()
    identity_type = getattr(mt, "Identity", None) or mt.common.Identity
    assignment_type = getattr(pt, "Assignment", None) or pt.common.Assignment
    identity = identity_type(job=job, worker=worker, incarnation=uuid.uuid4().hex)
    spec = mt.JobSpec(dataset_size=DATASET, total_batch_size=BATCH, seed=3, shuffle=True, drop_last=False)
    bounds = mt.Bounds(minimum=1, maximum=BATCH, granularity=1)
    reply = manager.join(mt.JoinRequest(identity=identity, job=spec, bounds=bounds))
    assert reply.reported_iteration == -1

    shard = connect_to_shard()  # not before it is called: a connection that says nothing is cut off
    ps_identity = identity_type(job=f"{job}/{reply.run}", worker=worker, incarnation=identity.incarnation)
    split = elements // 3
    groups = [pt.ParameterGroup(elements=n, options={"lr": LEARNING_RATE}) for n in (split, elements - split)]
    opened = shard.open(pt.OpenRequest(identity=ps_identity, dtype="float64", optimizer="sgd", groups=groups))
    if not opened.initialised:
        initial = initial_parameters(elements).tobytes()
        shard.initialise(pt.InitialiseRequest(identity=ps_identity, version=0), initial)
    pulled = shard.pull(pt.PullRequest(identity=ps_identity, version=0))

    assignments, parameters = [], [np.frombuffer(pulled.parameters)]
    for iteration in range(ITERATIONS):
        mine = reply.assignment
        assert mine.iteration == iteration
        assignments.append((mine.epoch, mine.start, mine.count, mine.total))
        gradient = gradient_of(worker, iteration, elements)
        assignment = assignment_type(**{name: getattr(mine, name) for name in vars(mine)})
        pushed = shard.push(pt.PushRequest(identity=ps_identity, assignment=assignment), gradient.tobytes())
        assert pushed.iteration == iteration
        reply = manager.report(
            mt.ReportRequest(
                identity=identity,
                iteration=iteration,
                # The two are not equally fast, so the manager does not split evenly.
                batch_processing_time=mine.count * {"a": 0.01, "b": 0.03}[worker],
                waiting_time=0.0,
                cpu_usage=0.5,
                memory_usage=0.5,
            )
        )
        assert (reply.reported_iteration, reply.identity.worker, reply.lost) == (iteration, worker, [])
        pulled = shard.pull(pt.PullRequest(identity=ps_identity, version=iteration + 1))
        assert pulled.version == iteration + 1
        parameters.append(np.frombuffer(pulled.parameters))
    left = manager.leave(mt.LeaveRequest(identity=identity))
    assert left.identity.incarnation == identity.incarnation
    manager.close()
    shard.close()
    return {"assignments": assignments, "parameters": parameters}


@pytest.mark.parametrize("elements", [100, 300 * 1024 // 8], ids=["small", "large"])
@pytest.mark.parametrize(
    "kinds", [("apache", "apache"), ("thriftpy2", "thriftpy2"), ("apache", "thriftpy2")], ids="+".join
)
def test_stock_clients_train_together(cluster, kinds, elements):
    """Stock clients of one kind or of two get the weighted SGD step that is computed by hand."""
    job = f"stock-{uuid.uuid4().hex}"
    with ThreadPoolExecutor(2) as pool:
        futures = [
            pool.submit(train, kind, cluster, job, worker, elements)
            for kind, worker in zip(kinds, "ab", strict=True)
        ]
        a, b = (future.result(timeout=240) for future in futures)

    expected = initial_parameters(elements)
    counts = []
    for iteration in range(ITERATIONS):
        (epoch, start_a, count_a, total), (epoch_b, start_b, count_b, total_b) = (
            a["assignments"][iteration],
            b["assignments"][iteration],
        )
        counts.append((count_a, count_b))
        assert (epoch, total) == (epoch_b, total_b) == (iteration // 3, (24, 24, 12)[iteration % 3])
        assert count_a + count_b == total
        ends = sorted([(start_a, start_a + count_a), (start_b, start_b + count_b)])
        first = BATCH * (iteration % 3)
        assert (ends[0][0], ends[0][1], ends[1][1]) == (first, ends[1][0], first + total)

        gradients = [gradient_of(worker, iteration, elements) for worker in "ab"]
        mean = (count_a * gradients[0] + count_b * gradients[1]) / total
        expected = expected - LEARNING_RATE * mean
        for worker in (a, b):
            np.testing.assert_allclose(worker["parameters"][iteration + 1], expected, rtol=1e-12, atol=1e-12)
    assert counts[1:] == [(18, 6), (9, 3), (18, 6)]  # after the first report, in proportion to the speeds


@pytest.mark.parametrize("kind", KINDS)
def test_stock_clients_read_the_history(cluster, kind):
    """What workers reported is found in the columns as the IDL describes them."""
    job = f"stock-{uuid.uuid4().hex}"
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda worker: train(kind, cluster, job, worker, 100), "ab", timeout=240))
    mt, _, connect, _ = KINDS[kind](*cluster)
    manager = connect()
    told = manager.history(mt.HistoryRequest(job=job, first_iteration=1, limit=10))
    assert [record.iteration for record in told.iterations] == [1, 2, 3]
    for record in told.iterations:
        workers = told.workers[record.workers]
        sizes = dict(zip(workers, struct.unpack("<2q", record.batch_sizes), strict=True))
        seconds = dict(zip(workers, struct.unpack("<2d", record.batch_processing_times), strict=True))
        assert sizes["a"] + sizes["b"] == record.total
        assert seconds == {"a": sizes["a"] * 0.01, "b": sizes["b"] * 0.03}
        assert struct.unpack("<2d", record.memory_usages) == (0.5, 0.5)
    manager.close()


@pytest.mark.parametrize("kind", KINDS)
def test_refusal_reaches_stock_clients(cluster, kind):
    """A stock client gets a refusal as the exception that the IDL declares, and can continue."""
    mt, pt, connect, connect_to_shard = KINDS[kind](*cluster)
    manager = connect()
    common = mt if kind == "apache" else mt.common
    nobody = common.Identity(job="none", worker="w", incarnation="i")
    for _ in range(2):
        with pytest.raises(common.NotMember) as refusal:
            manager.leave(mt.LeaveRequest(identity=nobody))
        assert "'none'" in refusal.value.message
    shard = connect_to_shard()
    common = pt if kind == "apache" else pt.common
    for size in (8, 2**19):
        with pytest.raises(common.NotMember) as refusal:
            shard.push(pt.PushRequest(identity=nobody), bytes(size))
        assert "has not opened job 'none'" in refusal.value.message
    manager.close()
    shard.close()


@pytest.mark.skipif(shutil.which("thrift") is None, reason="the Apache Thrift compiler is not on PATH")
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("language", ["py", "java", "cpp"])
def test_idl_compiles_with_apache_thrift(tmp_path, name, language):
    """The Apache compiler compiles the .thrift files for several languages."""
    run = subprocess.run(
        ["thrift", "-r", "--gen", language, "-out", str(tmp_path), str(IDL / f"{name}.thrift")],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 0, run.stderr
    assert any(tmp_path.rglob("*.*"))


def permutation_in_words(dataset_size: int, seed: int, epoch: int) -> list[int]:
    """Compute the permutation as idl/batchsize_manager.thrift defines it, in Python's own integers."""
    wrap, golden = 2**64 - 1, 0x9E3779B97F4A7C15

    def mix(z: int) -> int:
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & wrap
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & wrap
        return z ^ (z >> 31)

    base = mix(mix(seed + golden & wrap) + epoch + golden & wrap)
    keys = [(mix(base + (i + 1) * golden & wrap), i) for i in range(dataset_size)]
    return [i for _, i in sorted(keys)]


@pytest.mark.parametrize("dataset_size", [1, 2, 1000])
@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1])
@pytest.mark.parametrize("epoch", [0, 1, 10**6])
def test_permutation_is_that_of_the_idl(dataset_size, seed, epoch):
    """The permutation is the one that the IDL defines for clients in other languages."""
    expected = permutation_in_words(dataset_size, seed, epoch)
    assert permutation(JobSpec(dataset_size, 1, seed), epoch).tolist() == expected


def test_permutation_without_shuffle_is_the_order_of_the_data():
    """With shuffle off, position p holds index p, in every epoch."""
    spec = JobSpec(100, 10, seed=5, shuffle=False)
    for epoch in (0, 3):
        assert permutation(spec, epoch).tolist() == list(range(100))


class Survivor:
    """A stock client whose only fellow dies within the first iteration, once both have joined.

    Args:
        cluster: The services' addresses.
    """

    def __init__(self, kind: str, cluster: tuple[Address, Address], job: str) -> None:
        self._mt, self._pt, connect, connect_to_shard = KINDS[kind](*cluster)
        self._identity_type = getattr(self._mt, "Identity", None) or self._mt.common.Identity
        self._assignment_type = getattr(self._pt, "Assignment", None) or self._pt.common.Assignment
        self.manager, fellow = connect(), connect()
        with ThreadPoolExecutor(1) as pool:
            joining = pool.submit(self._join, fellow, job, "b")
            reply, self._identity = self._join(self.manager, job, "a")
            joining.result(timeout=120)
        fellow.close()
        self.assignment = reply.assignment
        self.shard = connect_to_shard()
        self._at_shard = self._identity_type(f"{job}/{reply.run}", "a", self._identity.incarnation)
        groups = [self._pt.ParameterGroup(elements=2, options={"lr": LEARNING_RATE})]
        self.shard.open(
            self._pt.OpenRequest(identity=self._at_shard, dtype="float64", optimizer="sgd", groups=groups)
        )
        self.shard.initialise(
            self._pt.InitialiseRequest(identity=self._at_shard, version=0), np.zeros(2).tobytes()
        )

    def _join(self, manager: Any, job: str, worker: str) -> Any:
        identity = self._identity_type(job=job, worker=worker, incarnation=uuid.uuid4().hex)
        spec = self._mt.JobSpec(DATASET, BATCH, 3, True, False)
        bounds = self._mt.Bounds(minimum=1, maximum=BATCH, granularity=1)
        return manager.join(self._mt.JoinRequest(identity=identity, job=spec, bounds=bounds)), identity

    def push_and_report(self) -> None:
        """Do the present assignment, with a gradient of ones, and take the next one."""
        mine = self.assignment
        assignment = self._assignment_type(**{name: getattr(mine, name) for name in vars(mine)})
        push = self._pt.PushRequest(identity=self._at_shard, assignment=assignment)
        self.shard.push(push, np.ones(2).tobytes())
        report = self._mt.ReportRequest(
            identity=self._identity,
            iteration=mine.iteration,
            batch_processing_time=0.1,
            waiting_time=0.0,
            cpu_usage=0.0,
            memory_usage=0.0,
        )
        self.assignment = self.manager.report(report).assignment

    def pull(self, version: int) -> np.ndarray:
        """Return the parameters of a version, once it is there."""
        pulled = self.shard.pull(self._pt.PullRequest(identity=self._at_shard, version=version))
        return np.frombuffer(pulled.parameters)


@pytest.fixture(scope="module")
def hasty_cluster() -> Iterator[tuple[Address, Address]]:
    """Start a manager that waits a second for a report, and a parameter server, as real processes."""
    with manager_process("--workers", "2", "--report-timeout", "1") as manager, shard_process() as shard:
        yield manager, shard


@pytest.mark.parametrize("kind", KINDS)
def test_stock_clients_do_what_others_have_left(hasty_cluster, kind):
    """As the IDL says: the report is answered with the same iteration, and the step comes after that part."""
    worker = Survivor(kind, hasty_cluster, f"stock-{uuid.uuid4().hex}")
    own = worker.assignment
    worker.push_and_report()
    left = worker.assignment
    assert (own.iteration, left.iteration, own.count + left.count) == (0, 0, BATCH)
    worker.push_and_report()
    assert (worker.assignment.iteration, worker.assignment.count) == (1, BATCH)
    np.testing.assert_allclose(worker.pull(1), np.full(2, -LEARNING_RATE))
    worker.manager.close()
    worker.shard.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_stock_client_that_pulls_in_place_of_that_is_taken_out(hasty_cluster, kind, wait_until):
    """It waits for itself at the shard; the manager's log says what it had to do."""
    job = f"stock-{uuid.uuid4().hex}"
    worker = Survivor(kind, hasty_cluster, job)
    worker.push_and_report()
    left = worker.assignment
    said = (
        f"a did not report in time the {left.count} samples of iteration 0, from position {left.start} on, "
        f"that it was given since another worker had left them"
    )

    def pull():
        with contextlib.suppress(Exception):  # of the shard's end
            worker.pull(1)

    waiting = threading.Thread(target=pull, daemon=True)
    waiting.start()
    with ManagerClient(hasty_cluster[0]) as client:
        wait_until(lambda: said in [event.text for event in client.status(job).events], "the line of log", 60)
    assert waiting.is_alive()
    worker.manager.close()


@pytest.mark.ci
def test_a_pull_that_does_not_say_how_long_to_wait_ends(monkeypatch):
    """After ten minutes, here a moment, with what is missing."""
    monkeypatch.setattr(ps_service, "_PULL_SECONDS", 0.1)
    with serving(manager_service(workers=2)) as manager, serving(shard_service()) as shard:
        worker, common = Survivor("thriftpy2", (manager, shard), "job"), thriftpy2_shard.common
        with pytest.raises(common.NotYet) as raised:
            worker.pull(1)
        begun = "version 1 is not there yet: "
        assert raised.value.message == f"{begun}no worker has pushed a gradient for iteration 0"
        worker.push_and_report()
        with pytest.raises(common.NotYet) as raised:
            worker.pull(1)
        assert raised.value.message == (
            f"{begun}the gradient of 12 of the 24 samples of iteration 0 has not been pushed; a has pushed"
        )
        worker.manager.close()
        worker.shard.close()
