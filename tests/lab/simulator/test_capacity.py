"""Nodes that come and go: who is there, and who is lost, against events one by one."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.simulator.capacity import Capacity

NAMES = ("a", "b", "c")


@st.composite
def event_lists(draw):
    """Events at whole seconds: at each a node of three that is there is lost, or another one joins."""
    present, time, events = set(), 0, [(0.0, "a", True)]
    present.add("a")
    for _ in range(draw(st.integers(1, 12))):
        time += draw(st.integers(1, 5))
        node = draw(st.sampled_from(NAMES))
        events.append((float(time), node, node not in present))
        present ^= {node}
    return events


def replay(events, now):
    """The nodes that are there at a time before the last event, by going through them."""
    present = set()
    for time, node, joins in events:
        if time <= now:
            (present.add if joins else present.remove)(node)
    return present


@given(event_lists(), st.floats(0, 1))
def test_the_nodes_are_those_that_the_events_leave(events, share):
    """At any time up to the last event, and so many periods later."""
    capacity = Capacity.of_events(events)
    period = events[-1][0]
    now = share * (period - 0.5)

    assert capacity.at(now) == replay(events, now)
    assert capacity.at(math.floor(now) + 3 * period) == replay(events, math.floor(now))


@given(event_lists(), st.integers(0, 40), st.integers(0, 40))
def test_the_lost_are_those_that_are_gone_at_some_second(events, begin, length):
    """Each node that is there at first, with the first second at which it is not."""
    capacity = Capacity.of_events(events)
    expected = {
        node: next(float(time) for time in range(begin, begin + length + 1) if node not in capacity.at(time))
        for node in capacity.at(begin)
        if any(node not in capacity.at(time) for time in range(begin, begin + length + 1))
    }

    assert capacity.lost(begin, begin + length) == expected


def test_failures_are_as_frequent_as_they_should_be():
    """A node runs for 10 hours in the mean and is away for one: 796 times in a year, within four errors."""
    hour = 3600.0
    capacity = Capacity.of_failures(["a"], 10 * hour, hour, seed=3)
    losses = sum(not nodes for _, nodes in capacity.changes)

    assert losses == pytest.approx(365 * 24 / 11, abs=4 * math.sqrt(365 * 24 / 11))
    assert Capacity.of_failures(["a"], 10 * hour, hour, seed=3) == capacity
    assert Capacity.of_failures(["a"], 10 * hour, hour, seed=4) != capacity
