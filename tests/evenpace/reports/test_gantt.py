"""The chart of jobs on devices: a device has one job at a time, and jobs stay where they can."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from evenpace.reports.gantt import Had, bars
from lab.simulations.page import had
from lab.simulator.workloads import Arrival
from scheduler.nodes import Cluster
from tests.lab.simulations.simulated import CLUSTER, outcome

FOUR = Cluster.of([("gpu", 1, 4)])


def lanes(*times):
    """The devices of each bar, by the job's name and the start; each time has a number of devices."""
    made = [Had(job, "", start, end, (("gpu-0", count),), "") for job, start, end, count in times]
    return {(bar.had.job, bar.had.start): bar.lanes for bar in bars(made, FOUR)}


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 600), st.integers(1, 4)), min_size=1, max_size=8))
def test_a_device_has_one_job_at_a_time(submissions):
    """Bars that overlap in time have no device in common, and each has as many of a node as its job."""
    arrivals = [Arrival(str(i), time, "tiny", number, 8) for i, (time, number) in enumerate(submissions)]
    made = bars(had(outcome("tiresias", arrivals).lives), CLUSTER)

    for one, other in itertools.combinations(made, 2):
        if one.had.start < other.had.end and other.had.start < one.had.end:
            assert not set(one.lanes) & set(other.lanes)
    for bar in made:
        names = [f"gpu-{lane // 2}" for lane in bar.lanes]
        assert {name: names.count(name) for name in names} == dict(bar.had.placement)


def test_a_job_keeps_its_devices_when_it_grows():
    """The second job has the third device, and keeps it although the first two are free."""
    placed = lanes(("a", 0, 60, 2), ("b", 0, 60, 1), ("b", 60, 120, 2))

    assert placed == {("a", 0): (0, 1), ("b", 0): (2,), ("b", 60): (0, 2)}
