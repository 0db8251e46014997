"""What several tests need."""

import time
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from rpc.address import Address
from tests import zygote
from tests.services import MemberWorker, ShardWorker, manager_service, serving, shard_service

# How long an example takes to draw and to try is the machine's affair, and no finding.
settings.register_profile("evenpace", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("evenpace")


@pytest.fixture(scope="session", autouse=True)
def _quick_starts() -> Iterator[None]:
    with zygote.installed():
        yield


@pytest.fixture(scope="session")
def wait_until():
    """A function that waits for a condition, and fails if it does not come about."""

    def wait(condition, what, seconds=240.0):
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


def pytest_collection_modifyitems(items):
    """Files with tests that take long come first, lest one process be left alone with them in the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
