"""What several tests need."""

import time
from collections.abc import Iterator

import pytest

from rpc.address import Address
from tests.services import MemberWorker, ShardWorker, manager_service, serving, shard_service


@pytest.fixture
def wait_until():
    """A function that waits for a condition, and fails if it does not come about."""

    def wait(condition, what, seconds=60.0):
        deadline = time.monotonic() + seconds
        while not (result := condition()):
            assert time.monotonic() < deadline, f"{what} did not come about within {seconds:g} s"
            time.sleep(0.02)
        return result

    return wait


@pytest.fixture(scope="module")
def manager() -> Iterator[Address]:
    """A manager for all tests that can share one."""
    with serving(manager_service(reconnect_grace=30.0)) as address:
        yield address


@pytest.fixture(scope="module")
def shard() -> Iterator[Address]:
    """A shard for all tests that can share one."""
    with serving(shard_service()) as address:
        yield address


@pytest.fixture
def member(manager) -> Iterator[MemberWorker]:
    """Has reported an iteration; the tests see whether it can go on."""
    worker = MemberWorker(manager)
    worker.iterate()
    yield worker
    worker.close()


@pytest.fixture
def pusher(shard) -> Iterator[ShardWorker]:
    """Has pushed an iteration; the tests see whether it can go on."""
    worker = ShardWorker(shard)
    worker.iterate()
    yield worker
    worker.close()
