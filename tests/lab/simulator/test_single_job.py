"""One job on nodes that change from epoch to epoch: its times, worked out by hand."""

import pytest

from lab.simulator.single_job import (
    Configuration,
    configure,
    most_nodes,
    profile,
    step_seconds,
    train,
)
from scheduler.goodput import Limits
from tests.lab.simulator.tiny import tiny_application

# Of one device, then of two on two nodes.
PLAN = [Configuration(1, 4, 0), Configuration(2, 8, 0)]


def test_epochs_last_as_long_as_their_iterations_and_the_change():
    """Ten iterations of 2 s; then a pause of 30 s, and 10 / (16 / 7) iterations of 4.2 s."""
    first, second = train(tiny_application(), lambda epoch, before: PLAN[epoch], 1, 30)

    assert (first.nodes, first.batch, first.seconds, first.efficiency) == (1, 4, pytest.approx(20), 1)
    assert (second.nodes, second.batch) == (2, 16)
    assert second.seconds == pytest.approx(30 + 10 * 7 / 16 * 4.2)
    assert second.efficiency == pytest.approx(4 / 7)


def test_a_choice_sees_the_epoch_before():
    """Before the first there is none."""
    seen = []

    def choose(epoch, before):
        seen.append((epoch, before))
        return PLAN[epoch]

    trained = train(tiny_application(), choose, 1, 0)
    assert seen == [(0, None), (1, trained[0])]


@pytest.mark.parametrize(
    ("batch", "nodes", "expected"),
    [(200, 1, (1, 50, 0)), (800, 1, (1, 100, 1)), (10, 2, (2, 8, 0)), (4000, 1, (1, 100, 9))],
)
def test_a_batch_is_split_over_all_devices(batch, nodes, expected):
    """Above the largest local batch gradients accumulate; below the least one the whole is made larger."""
    assert configure(Limits(64, 4000, 8, 100), batch, nodes, 4) == expected


def test_nodes_are_bounded_by_the_largest_batch():
    """Each device has the least local batch at least."""
    limits = Limits(64, 320, 8, 100)

    assert most_nodes(limits, 16, 4) == 10
    assert most_nodes(limits, 3, 4) == 3


def test_a_profile_foresees_the_steps_that_were_measured():
    """The model's form has no step of the tiny model exactly, but all within a fifth."""
    throughput = profile(tiny_application(), 2, 1)

    for nodes, local in ((1, 2), (1, 8), (2, 2), (2, 8)):
        measured = step_seconds(tiny_application(), Configuration(nodes, local, 0), 1)
        assert throughput.seconds(nodes, nodes, local) == pytest.approx(measured, rel=0.2)
