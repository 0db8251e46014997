"""What several tests need."""

import time

import pytest


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
