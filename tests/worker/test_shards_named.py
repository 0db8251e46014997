"""Workers that name other shards than they should get an error; nothing is trained wrong meanwhile."""

import contextlib

import pytest

from idl.errors import InvalidRequestError
from idl.synchronisation import Synchronisation
from rpc.address import Address
from tests.services import RestartableService, serving, shard_service
from tests.worker.least_squares import Worker
from tests.worker.test_recovery import ITERATIONS, assert_trained, in_process_manager, once


@contextlib.contextmanager
def two_shards():
    """Yield the addresses of two shards in this process."""
    with serving(shard_service()) as first, serving(shard_service()) as second:
        yield first, second


def mode(name, **options):
    """Return the options of a job whose workers wait for each other in this way."""
    return {"synchronisation": Synchronisation(name, **options)}


def ends(*workers):
    """Wait for workers; those that trained to the end must be right. Return the others' errors."""
    for worker in workers:
        worker.join(240)
        assert not worker.is_alive()
    refused = [worker.error for worker in workers if worker.error is not None]
    assert all(isinstance(error, InvalidRequestError) for error in refused), refused
    assert_trained([worker for worker in workers if worker.error is None])
    return "\n".join(map(str, refused))


def test_another_order_is_refused():
    """Of two workers that name the shards in different orders, at most one trains."""
    with in_process_manager(2) as manager, two_shards() as (first, second):
        told = ends(
            Worker(manager, [first, second], "w0", ITERATIONS),
            Worker(manager, [second, first], "w1", ITERATIONS),
        )
    assert "holds part" in told
    assert "in the same order at every worker" in told


@pytest.mark.parametrize("again", ["127.0.0.1", "localhost"])
def test_a_shard_that_is_named_twice_is_refused(again):
    """It holds one part, under whatever address it is called for the other."""
    with in_process_manager(1) as manager, two_shards() as (first, _):
        told = ends(Worker(manager, [first, Address(again, first.port)], "w0", ITERATIONS))
    assert "part 0 of 2" in told
    assert "part 1 of 2" in told


@pytest.mark.parametrize(
    "job",
    [{}, {"lookahead": 2}, mode("asp"), mode("ssp", staleness=5), mode("backup", replicas_to_aggregate=1)],
)
def test_workers_that_use_shards_of_their_own_are_refused(job):
    """The manager sees at once that they differ, in every mode; the one that reports first trains on."""
    with in_process_manager(2, **job) as manager, two_shards() as (first, second):
        workers = [Worker(manager, [shard], f"w{i}", ITERATIONS) for i, shard in enumerate((first, second))]
        for worker in workers:
            worker.join(240)
    (refused,) = [worker.error for worker in workers if worker.error is not None]
    assert "does not use the same shards of the parameter server as" in str(refused)
    if "synchronisation" not in job:
        assert_trained([worker for worker in workers if worker.error is None])


@pytest.mark.simulated
def test_shards_that_have_changed_folders_are_refused(tmp_path):
    """Both come back with each other's checkpoints: the worker ends with an error that names both parts."""
    states = [str(tmp_path / f"ps-{i}") for i in range(2)]
    shards = [RestartableService("ps", "--state", state, "--checkpoint-every", "1") for state in states]

    def change_places():
        for shard in shards:
            shard.kill()
        (tmp_path / "ps-0").rename(tmp_path / "ps-2")
        (tmp_path / "ps-1").rename(tmp_path / "ps-0")
        (tmp_path / "ps-2").rename(tmp_path / "ps-1")
        for shard in shards:
            shard.start()

    with in_process_manager(1) as manager, shards[0], shards[1]:
        addresses = [shard.address for shard in shards]
        told = ends(Worker(manager, addresses, "w0", ITERATIONS, once(10, change_places)))
    assert "this shard holds part 1 of 2" in told or "this shard holds part 0 of 2" in told
    assert "with the folder and address that it had" in told
