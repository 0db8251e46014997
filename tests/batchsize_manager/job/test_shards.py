"""Workers of one job have to use the same shards, whose instances they report."""

import pytest

from idl.errors import InvalidRequestError
from idl.records import Report
from tests.batchsize_manager.job.driver import Driver


def report(driver, worker, iteration, shards):
    """Let a worker report an iteration of the present attempt, and the shards that it uses."""
    told = Report(iteration, 1.0, attempt=driver.job.attempts.number, shards=shards)
    driver.job.report(worker, worker, told, driver.now)


def recover(driver, iteration):
    """Let all workers go on from an iteration, in the attempt that has begun."""
    assert driver.job.attempts.is_recovering
    for worker in ("a", "b"):
        driver.rewind(worker, driver.job.attempts.number, iteration)


def test_workers_that_use_different_shards_are_given_another_attempt_and_then_refused():
    """The error names both workers; the other one stays a member."""
    driver = Driver("a", "b")
    report(driver, "a", 0, "x")
    report(driver, "b", 0, "y")
    recover(driver, 0)
    report(driver, "b", 0, "y")
    with pytest.raises(InvalidRequestError, match=r"'a' does not use the same shards .* as 'b'"):
        report(driver, "a", 0, "x")
    assert list(driver.job.members) == ["a", "b"]


@pytest.mark.parametrize("iterations", [1, 3])
def test_a_shard_that_was_started_again_costs_an_attempt(iterations):
    """Each time that it comes back with another instance, the workers agree in the next attempt."""
    driver = Driver("a", "b")
    for iteration in range(iterations):
        report(driver, "a", iteration, f"old {iteration}")
        report(driver, "b", iteration, f"new {iteration}")
        recover(driver, iteration)
        for worker in ("a", "b"):
            report(driver, worker, iteration, f"new {iteration}")
        assert driver.iteration("a") == driver.iteration("b") == iteration + 1
        # The next attempt has the workers fence the shards again.
        driver.job.recover("a", "a", driver.job.attempts.number, driver.now)
        recover(driver, iteration + 1)


def test_shards_may_be_started_again_one_after_the_other_in_one_iteration():
    """Each costs an attempt, as long as no two workers are apart by the same starts again."""
    driver = Driver("a", "b")
    for number in range(3):
        report(driver, "a", 0, f"start {number}")
        report(driver, "b", 0, f"start {number + 1}")
        recover(driver, 0)
    report(driver, "a", 0, "start 1")
    with pytest.raises(InvalidRequestError, match=r"'b' does not use the same shards .* as 'a'"):
        report(driver, "b", 0, "start 2")


def test_workers_that_do_not_say_which_shards_they_use_are_not_compared():
    """A stock client may leave them out."""
    driver = Driver("a", "b")
    report(driver, "a", 0, "x")
    report(driver, "b", 0, None)
    assert driver.iteration("a") == driver.iteration("b") == 1
