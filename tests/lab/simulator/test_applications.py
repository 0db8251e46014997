"""A model's measurements: interpolation between them, limits, and how a batch is divided."""

import pytest

from lab.simulator.rules import JobLimits
from scheduler.goodput import Limits
from tests.lab.simulator.tiny import step_time, tiny_application


def test_a_limit_of_memory_replaces_the_measured_one():
    """Local batches go as far as was measured, or as far as they are allowed to."""
    assert tiny_application().batches["gpu"] == Limits(4, 16, 2, 8)
    assert tiny_application(JobLimits(most_local={"gpu": 3})).batches["gpu"] == Limits(4, 16, 2, 3)


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        # Between the step times of the next local batches, nodes in whichever order.
        (lambda its: its.step_time("gpu", (1,), 4), (2.0, 0.5)),
        (lambda its: its.step_time("gpu", (2, 1), 8), step_time(2, 3, 8)),
        # Of the trainings with several batch sizes, the least progress at the end of an epoch counts.
        (lambda its: [its.epoch_end(epoch) for epoch in (0, 1)], [10.0, 20.0]),
        # With noise of 3 to 1 at the initial batch, one of four times the size counts (3 + 1) / (3 / 4 + 1).
        (lambda its: [its.gain(batch, 0) for batch in (4, 16)], [1.0, 16 / 7]),
        # A job in its last epoch counts as almost done.
        (lambda its: its.iterations_left(4, 1), 1.0),
        # Two parts of 2 samples on one device: 1 s the second, and without synchronisation 0.5 s the first.
        (lambda its: its.packed_iteration("gpu", 4, 1, node=2), 1.0 + 0.5),
        # Three devices on nodes of two are two and one.
        (lambda its: its.packed_iteration("gpu", 12, 3, node=2), step_time(2, 3, 4)[0]),
        # Eight samples take 4 s.
        (lambda its: its.single_speeds, {"gpu": 2.0}),
    ],
)
def test_what_follows_from_the_tiny_model(of, expected):
    """Worked out by hand."""
    assert of(tiny_application()) == pytest.approx(expected)
