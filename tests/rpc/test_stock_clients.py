"""Stock clients of Apache Thrift take part in training without any code of evenpace."""

import struct
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from rpc.address import Address
from tests.rpc import apache_client as stock
from tests.services import manager_process, shard_process

ITERATIONS = 4
BATCH, DATASET = 24, 60  # batches of 24, 24 and 12 samples, so that the last has another total
LEARNING_RATE = 0.25


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[Address, Address]]:
    """Start a manager whose jobs begin with two workers, and a parameter server, as real processes."""
    with manager_process("--workers", "2") as manager, shard_process() as shard:
        yield manager, shard


def initial_parameters(elements: int) -> np.ndarray:
    """Return the parameters that the job starts from, (elements,)."""
    return np.random.default_rng(0).normal(size=elements)


def gradient_of(worker: str, iteration: int, elements: int) -> np.ndarray:
    """Return the gradient that `worker` pushes in `iteration`, (elements,)."""
    return np.random.default_rng([ord(worker), iteration]).normal(size=elements)


def train(cluster: tuple[Address, Address], job: str, worker: str, elements: int) -> dict:
    """Take part in a job from join to leave; return the assignments and the parameters after each step."""
    manager = stock.ApacheClient(*cluster[0])
    identity = stock.Identity(job=job, worker=worker, incarnation=uuid.uuid4().hex)
    spec = stock.JobSpec(dataset_size=DATASET, total_batch_size=BATCH, seed=3, shuffle=True, drop_last=False)
    bounds = stock.Bounds(minimum=1, maximum=BATCH, granularity=1)
    reply = manager.join(stock.JoinRequest(identity=identity, job=spec, bounds=bounds))
    assert reply.reported_iteration == -1

    shard = stock.ApacheClient(
        *cluster[1]
    )  # not before it is called: a connection that says nothing is cut off
    ps_identity = stock.Identity(job=f"{job}/{reply.run}", worker=worker, incarnation=identity.incarnation)
    split = elements // 3
    groups = [
        stock.ParameterGroup(elements=n, options={"lr": LEARNING_RATE}) for n in (split, elements - split)
    ]
    opened = shard.open(
        stock.OpenRequest(identity=ps_identity, dtype="float64", optimizer="sgd", groups=groups)
    )
    if not opened.initialised:
        initial = initial_parameters(elements).tobytes()
        shard.initialise(stock.InitialiseRequest(identity=ps_identity, version=0), initial)
    pulled = shard.pull(stock.PullRequest(identity=ps_identity, version=0))

    assignments, parameters = [], [np.frombuffer(pulled.parameters)]
    for iteration in range(ITERATIONS):
        mine = reply.assignment
        assert mine.iteration == iteration
        assignments.append((mine.epoch, mine.start, mine.count, mine.total))
        gradient = gradient_of(worker, iteration, elements)
        assignment = stock.Assignment(**{name: getattr(mine, name) for name in vars(mine)})
        pushed = shard.push(
            stock.PushRequest(identity=ps_identity, assignment=assignment), gradient.tobytes()
        )
        assert pushed.iteration == iteration
        reply = manager.report(
            stock.ReportRequest(
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
        pulled = shard.pull(stock.PullRequest(identity=ps_identity, version=iteration + 1))
        assert pulled.version == iteration + 1
        parameters.append(np.frombuffer(pulled.parameters))
    left = manager.leave(stock.LeaveRequest(identity=identity))
    assert left.identity.incarnation == identity.incarnation
    manager.close()
    shard.close()
    return {"assignments": assignments, "parameters": parameters}


@pytest.mark.parametrize("elements", [100, 300 * 1024 // 8], ids=["small", "large"])
def test_stock_clients_train_together(cluster, elements):
    """Stock clients get the weighted SGD step that is computed by hand, and read of both."""
    job = f"stock-{uuid.uuid4().hex}"
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(train, cluster, job, worker, elements) for worker in "ab"]
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
    check_history(cluster, job)


def check_history(cluster: tuple[Address, Address], job: str) -> None:
    """Check that what workers reported is found in the columns as the IDL describes them."""
    manager = stock.ApacheClient(*cluster[0])
    told = manager.history(stock.HistoryRequest(job=job, first_iteration=1, limit=10))
    assert [record.iteration for record in told.iterations] == [1, 2, 3]
    for record in told.iterations:
        workers = told.workers[record.workers]
        sizes = dict(zip(workers, struct.unpack("<2q", record.batch_sizes), strict=True))
        seconds = dict(zip(workers, struct.unpack("<2d", record.batch_processing_times), strict=True))
        assert sizes["a"] + sizes["b"] == record.total
        assert seconds == {"a": sizes["a"] * 0.01, "b": sizes["b"] * 0.03}
        assert struct.unpack("<2d", record.memory_usages) == (0.5, 0.5)
    manager.close()
