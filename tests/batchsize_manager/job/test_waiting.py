"""What a job waits for, in words: who or what is missing, and what to do."""

import pytest

from batchsize_manager.job.waiting import awaited
from idl.bounds import Bounds
from idl.errors import InvalidRequestError, UnavailableError
from idl.exchange import FIXED_GROUP, FORMED_GROUP
from tests.batchsize_manager.job.driver import Driver


def gathering(*present, wanted):
    """Make a job of `wanted` workers of which some have joined."""
    driver = Driver(*map(str, range(wanted)))
    for name in map(str, range(wanted)):
        driver.job.members.by_name.pop(name)
    driver.job.members.started = False
    for name in present:
        driver.join(name)
    return driver


def test_who_was_refused_is_named_until_it_joins():
    """With the reason; the log says so once for each reason, also if the worker tries again and again."""
    driver = gathering("a", wanted=3)
    for _ in range(3):
        driver.job.refuse("b", "dataset_size 59")
    driver.job.refuse("c", "minimum 30")
    assert awaited(driver.job).endswith("; b was refused: dataset_size 59; c was refused: minimum 30")
    assert [event for event in driver.job.outbox.events if "refused" in event] == [
        "b was refused: dataset_size 59",
        "c was refused: minimum 30",
    ]
    driver.join("b")
    assert "b was refused" not in awaited(driver.job)
    assert "c was refused" in awaited(driver.job)
    driver.join("c")
    assert "refused" not in awaited(driver.job)


def test_few_refused_workers_are_remembered():
    """Names that anybody makes up do not fill the memory."""
    driver = gathering("a", wanted=2)
    for number in range(20):
        driver.job.refuse(f"w{number}", "why")
    assert list(driver.job.refused) == [f"w{number}" for number in range(15, 20)]


def test_a_group_says_who_has_not_come():
    """Members that the manager forms a group of meet before anything is planned."""
    driver = Driver("a", "b", exchange=FORMED_GROUP)
    driver.job.must_recover("a", "a")
    driver.job.rewind("a", "a", 1, 0, 0.0, store="a:1")
    assert awaited(driver.job).endswith("b has not come to its group yet")


def test_a_group_whose_members_are_too_few_says_what_they_can_take():
    """All that are left have come, and none is waited for with its state: others are to be started."""
    driver = Driver("a", "b", total=30, bounds=dict.fromkeys("ab", Bounds(1, 20)), exchange=FORMED_GROUP)
    driver.job.refuse("c", "minimum 30")
    driver.job.must_recover("a", "a")
    driver.job.rewind("a", "a", 1, 0, 0.0, store="a:1")
    driver.job.leave("b", "b", 0.0)
    assert awaited(driver.job) == (
        "attempt 1 has begun, since the workers' first group is to be formed: the workers can take 20 "
        "samples together at most, less than a batch of 30: start other workers; c was refused: minimum 30"
    )


def test_a_group_that_nobody_can_join_refuses_late_comers_at_once():
    """The error names what to change; while a member seems dead, the job may be over soon."""
    driver = Driver("rank-0", exchange=FIXED_GROUP)
    with pytest.raises(InvalidRequestError, match=r"'rank-1' comes too late: .*--workers .*number of ranks"):
        driver.join("rank-1")
    driver.join("rank-0")
    driver.job.disconnect("rank-0", "rank-0", 0.0)
    with pytest.raises(UnavailableError, match="may be over soon"):
        driver.join("rank-1")
