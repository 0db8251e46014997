"""One job on nodes that change from epoch to epoch: its times, worked out by hand."""

import pytest

from lab.simulator.single_job import (
    Configuration,
    configure,
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


@pytest.mark.parametrize(
    ("batch", "nodes", "expected"),
    [(200, 1, (1, 50, 0)), (800, 1, (1, 100, 1)), (10, 2, (2, 8, 0)), (4000, 1, (1, 100, 9))],
)
def test_a_batch_is_split_over_all_devices(batch, nodes, expected):
    """Above the largest local batch gradients accumulate; below the least one the whole is made larger."""
    assert configure(Limits(64, 4000, 8, 100), batch, nodes, 4) == expected
