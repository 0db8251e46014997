"""Devices of nodes: what is found is free, on as few nodes as possible, and no two jobs share a network."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from scheduler.policies.occupancy import Occupancy

nodes = st.lists(st.integers(1, 4), min_size=1, max_size=5)


@st.composite
def partly_taken(draw):
    """Nodes with some devices taken by jobs of one node and by jobs that span nodes."""
    most_nodes = draw(st.integers(2, 5))
    occupancy = Occupancy(draw(nodes), most_nodes)
    for job in range(draw(st.integers(0, 5))):
        if draw(st.booleans()):
            if most := occupancy.most_within():
                occupancy.take(job, occupancy.find_within(draw(st.integers(1, most))))
        elif most := occupancy.most_across():
            occupancy.take(job, occupancy.find_across(draw(st.integers(1, most))))
    return occupancy, most_nodes


def spanning_nodes(occupancy):
    """Return the nodes that have a part of a job that spans nodes, each as often as it has one."""
    jobs = itertools.chain(*occupancy.jobs)
    several = {job for job in jobs if sum(job in on for on in occupancy.jobs) > 1}
    return [node for node, on in enumerate(occupancy.jobs) for job in on if job in several]


@given(partly_taken())
def test_no_node_has_parts_of_two_jobs_that_span_nodes(taken):
    """Whatever was taken, and no device was taken twice."""
    occupancy, _ = taken
    spanned = spanning_nodes(occupancy)
    assert len(spanned) == len(set(spanned))
    for size, free, jobs in zip(occupancy.sizes, occupancy.free, occupancy.jobs, strict=True):
        assert free == size - sum(jobs.values()) >= 0


@given(partly_taken())
def test_devices_of_one_node_leave_the_fewest_others_free(taken):
    """Each number up to the most is found, on a node where no other would have fewer left."""
    occupancy, _ = taken
    assert occupancy.most_within() == max(occupancy.free)
    for number in range(1, occupancy.most_within() + 1):
        ((node, count),) = occupancy.find_within(number)
        assert count == number
        assert occupancy.free[node] == min(free for free in occupancy.free if free >= number)


@given(partly_taken())
def test_devices_across_nodes_are_on_as_few_as_possible(taken):
    """Each number up to the most is found on nodes without other jobs that span nodes, as few as will do."""
    occupancy, most_nodes = taken
    spanned = spanning_nodes(occupancy)
    usable = sorted((free for node, free in enumerate(occupancy.free) if node not in spanned), reverse=True)
    reach = list(itertools.accumulate(usable[:most_nodes]))
    assert occupancy.most_across() == (reach[-1] if reach else 0)
    for number in range(1, occupancy.most_across() + 1):
        parts = occupancy.find_across(number)
        assert sum(count for _, count in parts) == number
        assert (
            len({node for node, _ in parts})
            == len(parts)
            == next(i for i, n in enumerate(reach, 1) if n >= number)
        )
        assert occupancy.fits(parts)
