"""Devices given to jobs by costs: what the cluster has, never worse than to stay, and none left to waste."""

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.policies.assignment import Costs, assign

SIZES = [2, 2, 2]
costs = st.floats(0.1, 100)


@st.composite
def jobs_of_a_cluster(draw):
    """Up to three jobs with falling costs on three nodes of two; each may have some devices to begin with."""
    free = list(SIZES)
    spanned = [False] * len(SIZES)
    jobs = []
    for _ in range(draw(st.integers(1, 3))):
        falling = np.sort(draw(st.lists(costs, min_size=7, max_size=7)))[::-1]
        slower = draw(st.floats(1, 2))
        across = falling * slower
        across[:2] = falling[0], np.inf
        parts = tuple(
            (node, count) for node, left in enumerate(free) if (count := draw(st.integers(0, left)))
        )
        if len(parts) > 1 and any(spanned[node] for node, _ in parts):
            parts = ()
        for node, count in parts:
            free[node] -= count
            spanned[node] |= len(parts) > 1
        count = sum(count for _, count in parts)
        stays = draw(st.floats(0.5, 1)) * (across if len(parts) > 1 else falling)[count] if parts else np.inf
        jobs.append(Costs(falling[:3], across, float(stays), parts))
    return jobs


def cost(job, parts):
    """Return the cost of parts to a job, the least if there are two."""
    count = sum(count for _, count in parts)
    moved = job.within[count] if len(parts) < 2 else job.across[count]
    return min(moved, job.stays) if parts and set(parts) == set(job.parts) else moved


def valid(assigned):
    """Return whether the nodes have the devices, and none has two jobs that span nodes."""
    used, spanning = np.zeros(len(SIZES)), np.zeros(len(SIZES))
    for parts in assigned:
        for node, count in parts:
            used[node] += count
            spanning[node] += len(parts) > 1
    return (used <= SIZES).all() and (spanning <= 1).all()


@given(jobs_of_a_cluster())
def test_the_cluster_has_what_is_given(jobs):
    """No node gives more than it has, and none has parts of two jobs that span nodes."""
    assert valid(assign(SIZES, jobs, 16))


@settings(max_examples=1000)  # in few of them it matters that all jobs stay to begin with
@given(jobs_of_a_cluster())
def test_nothing_is_worse_than_before(jobs):
    """The sum of costs is at most what it is if all jobs stay, or wait that have nothing."""
    before = sum(cost(job, job.parts) for job in jobs)
    assigned = assign(SIZES, jobs, 16)
    assert sum(map(cost, jobs, assigned)) <= before * (1 + 1e-9)


@given(jobs_of_a_cluster())
def test_no_job_could_do_better_by_free_devices(jobs):
    """With its own devices and the free ones, none could have a lower cost."""
    assigned = assign(SIZES, jobs, 16)
    for place, job in enumerate(jobs):
        now = cost(job, assigned[place])
        for counts in itertools.product(*(range(size + 1) for size in SIZES)):
            parts = tuple((node, count) for node, count in enumerate(counts) if count)
            if valid([*assigned[:place], parts, *assigned[place + 1 :]]):
                assert cost(job, parts) >= now * (1 - 1e-6)
