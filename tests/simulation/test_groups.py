"""Simulated jobs in groups that the manager forms: under faults, and that what is wrong in them is found."""

import pytest

from tests.simulation import groups
from tests.simulation.cluster import simulate
from tests.simulation.groups import GROUP_KINDS, GroupScenario
from tests.simulation.test_simulation import assert_all_happen, seeds


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(quick=4, often=25, all_=50))
def test_a_job_in_groups_ends_right_whatever_befalls_it(seed):
    """All workers that live end well, with the parameters of one process."""
    outcome = simulate(GroupScenario.of(seed))
    command = f"python -m tests.simulation {seed} --with all-reduce --log"
    assert not outcome.wrongs, f"{outcome}\n{command} shows how it came to that"


@pytest.mark.ci
@pytest.mark.parametrize("part", range(3))
def test_every_kind_of_fault_happens_to_a_job_in_groups(part):
    """Of every third kind there is some where no other befalls the job."""
    assert_all_happen(GROUP_KINDS[part::3], GroupScenario)


def _is_in_one_of_ten(words):
    """Return whether words are in what came of the first ten scenarios."""
    return any(words in str(simulate(GroupScenario.of(seed))) for seed in range(10))


@pytest.mark.slow
def test_a_step_without_a_member_is_found(monkeypatch):
    """A group that does not say that it is broken lets members step with their own gradients alone."""
    monkeypatch.setattr(groups.FormedGroup, "settle", lambda self: None)
    assert _is_in_one_of_ten("with parameters that differ by")


@pytest.mark.slow
def test_a_batch_that_is_not_gone_back_from_is_found(monkeypatch):
    """What a batch that does not count has moved is to be as it was before."""
    monkeypatch.setattr(groups.FormedGroup, "begin_batch", lambda self: None)
    assert _is_in_one_of_ten("has noted 41 batches")


@pytest.mark.slow
def test_two_groups_that_go_on_at_once_are_found(monkeypatch):
    """Who steps in an attempt after others have stepped in a later one is in a group of its own."""
    possible = groups._GroupJob.possible

    def backwards(job, *worker):
        job._stepped = {batch: -abs(time) for batch, time in job._stepped.items()}
        return possible(job, *worker)

    monkeypatch.setattr(groups._GroupJob, "possible", backwards)
    assert _is_in_one_of_ten("two groups have gone on at once")
