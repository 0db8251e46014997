"""A model's measurements: interpolation between them, limits, and how a batch is divided."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.simulator.applications import Application, Epochs, StepTimes
from scheduler.simulator.rules import Limits
from tests.scheduler.simulator.tiny import step_time, tiny_application, tiny_step_times


def test_step_times_are_interpolated_over_the_local_batch():
    """A placement that was measured has step times between those of the next local batches."""
    assert tiny_application().step_time((1,), 4) == pytest.approx((2.0, 0.5))


def test_a_placement_counts_as_its_smallest_rotation():
    """Nodes in another order have the step times that were measured in one order."""
    application = tiny_application()
    assert application.step_time((2, 1), 8) == application.step_time((1, 2), 8)


@pytest.mark.parametrize(("shape", "local"), [((1, 1, 2), 2), ((1, 2, 2), 5), ((2, 2, 1), 8)])
def test_step_times_of_other_placements_are_interpolated_over_nodes_and_replicas(shape, local):
    """A wide placement that was not measured has what its nodes, replicas and local batch let expect."""
    found = tiny_application().step_time(shape, local)
    assert found == pytest.approx(step_time(len(shape), sum(shape), local))


def test_like_placements_count_with_their_mean():
    """A placement that was not measured takes the mean of those with as many nodes and replicas."""
    times = tiny_step_times()
    locals_, seconds = times.placements[1, 1]
    alike = {**times.placements, (1, 1, 4): (locals_, seconds), (1, 2, 3): (locals_, seconds + 0.5)}
    wide = np.array([(4, replicas, local) for replicas in (4, 8) for local in locals_])
    measured = StepTimes(alike, (wide, np.array([step_time(*row) for row in wide])))

    assert measured.at((2, 2, 2), 8) == pytest.approx((4.2 + 0.25, 1.0 + 0.25))


@pytest.mark.parametrize(("shape", "local"), [((1,), 9), ((1,), 1), ((2, 2, 2), 9), ((9, 9), 2)])
def test_step_times_are_not_extrapolated(shape, local):
    """A local batch or placement beyond the measurements is refused, by the model's name."""
    with pytest.raises(ValueError, match="tiny: local batch"):
        tiny_application().step_time(shape, local)


def test_an_epoch_ends_at_the_least_progress():
    """Of the trainings with several batch sizes, the least progress at the end of an epoch counts."""
    application = tiny_application()
    assert [application.epoch_end(epoch) for epoch in (0, 1)] == [10.0, 20.0]


def test_noise_and_iterations_are_interpolated_over_the_batch():
    """A batch between two that were trained with has values between theirs."""
    ones = np.ones(2)
    trainings = {
        4: Epochs(ones, np.array([10.0, 20.0]), 1 * ones, 10 * ones),
        16: Epochs(ones, np.array([4.0, 8.0]), 4 * ones, 40 * ones),
    }
    application = Application("made", tiny_step_times(), trainings)

    assert application.noise(8, 0) == pytest.approx((2.0, 20.0))
    assert application.iterations_left(8, 0) == pytest.approx(10 * 2 / 3 + 4 / 3)


def test_one_iteration_is_left_in_the_last_epoch():
    """A job in its last epoch counts as almost done."""
    assert tiny_application().iterations_left(4, 1) == 1.0


def test_a_batch_that_was_not_measured_is_refused():
    """Noise is not extrapolated to larger or smaller batches."""
    with pytest.raises(ValueError, match="17 samples; measured are 4 to 16"):
        tiny_application().noise(17, 0)


@given(batch=st.integers(4, 16), replicas=st.integers(1, 8))
def test_a_batch_is_divided_within_memory(batch, replicas):
    """Devices hold at most what fits, and together at most the largest batch, or as near as they come."""
    application = tiny_application()
    local, accumulation = application.configuration(batch, replicas)
    total = replicas * local * (accumulation + 1)

    assert 1 <= local <= application.most_local
    assert total <= application.largest
    # What is lost by the cap, or added by rounding up, is less than one sample a part.
    assert abs(total - batch) < replicas * (accumulation + 1)


def test_one_device_accumulates_above_the_initial_batch():
    """Noise can be measured of several gradients only: a single device takes at least two for it."""
    application = tiny_application()
    assert application.configuration(4, 1) == (4, 0)
    assert application.configuration(8, 1) == (4, 1)
    assert application.configuration(8, 2) == (4, 0)


def test_more_accumulation_is_used_where_memory_is_short():
    """A batch that does not fit is divided into parts that do."""
    application = tiny_application(Limits(most_local=3))
    assert application.configuration(16, 2) == (2, 2)


def test_an_iteration_on_packed_nodes_has_the_accumulation_of_one_device():
    """One device accumulates once; its second step has no synchronisation."""
    # Two parts of 2 samples, 1 s the second, and 0.5 s less the first.
    assert tiny_application().packed_iteration(4, 1, node=2) == pytest.approx(1.0 + 0.5)


def test_nodes_are_filled_in_packed_placements():
    """Three devices on nodes of two are two and one."""
    step, _ = tiny_application().step_time((2, 1), 4)
    assert tiny_application().packed_iteration(12, 3, node=2) == pytest.approx(step)


def test_a_job_has_no_more_epochs_than_were_measured():
    """Limits beyond the trainings are refused."""
    with pytest.raises(ValueError, match="a job has 3 epochs; 2 were measured"):
        tiny_application(Limits(epochs=3))
