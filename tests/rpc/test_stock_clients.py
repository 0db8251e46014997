"""Stock Thrift clients, Apache's and thriftpy2's, take part in training without any code of evenpace."""

import functools
import struct
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

from rpc.address import Address
from tests import ROOT
from tests.rpc import apache_client
from tests.services import manager_process, shard_process

IDL = ROOT / "idl"
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
def test_stock_clients_train_together(cluster, elements):
    """Stock clients of two kinds get the weighted SGD step that is computed by hand, and read of both."""
    job = f"stock-{uuid.uuid4().hex}"
    with ThreadPoolExecutor(2) as pool:
        futures = [
            pool.submit(train, kind, cluster, job, worker, elements)
            for kind, worker in zip(KINDS, "ab", strict=True)
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
    for kind in KINDS:
        check_history(kind, cluster, job)


def check_history(kind: str, cluster: tuple[Address, Address], job: str) -> None:
    """Check that what workers reported is found in the columns as the IDL describes them."""
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
