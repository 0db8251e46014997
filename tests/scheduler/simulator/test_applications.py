"""A model's measurements: interpolation between them, limits, and how a batch is divided."""

import numpy as np
import pytest

from scheduler.goodput import Limits
from scheduler.simulator.applications import Application, Epochs, StepTimes
from scheduler.simulator.rules import JobLimits
from tests.scheduler.simulator.tiny import step_time, tiny_application, tiny_step_times


def test_step_times_are_interpolated_over_the_local_batch():
    """A placement that was measured has step times between those of the next local batches."""
    assert tiny_application().step_time("gpu", (1,), 4) == pytest.approx((2.0, 0.5))


def test_a_placement_counts_as_its_smallest_rotation():
    """Nodes in another order have the step times that were measured in one order."""
    application = tiny_application()
    assert application.step_time("gpu", (2, 1), 8) == application.step_time("gpu", (1, 2), 8)


@pytest.mark.parametrize(("shape", "local"), [((1, 1, 2), 2), ((1, 2, 2), 5), ((2, 2, 1), 8)])
def test_step_times_of_other_placements_are_interpolated_over_nodes_and_replicas(shape, local):
    """A wide placement that was not measured has what its nodes, replicas and local batch let expect."""
    found = tiny_application().step_time("gpu", shape, local)
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
        tiny_application().step_time("gpu", shape, local)


def test_too_few_step_times_to_interpolate_are_said_so():
    """Measurements on one node tell nothing of several."""
    one = tiny_step_times().placements[(1,)]
    nothing = np.empty((0, 3)), np.empty((0, 2))
    with pytest.raises(ValueError, match="2 measured step times are too few"):
        StepTimes({(1,): one}, nothing).at((1, 1), 2)


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
    application = Application("made", {"gpu": tiny_step_times()}, trainings)

    noise = application.noise(8, 0)

    assert (noise.sqr, noise.var) == pytest.approx((2.0, 4 * 20.0))  # of one sample, not of four
    assert application.iterations_left(8, 0) == pytest.approx(10 * 2 / 3 + 4 / 3)


def test_an_iteration_gains_as_the_noise_allows():
    """With noise of 3 to 1 at the initial batch, one of four times the size counts (3 + 1) / (3 / 4 + 1)."""
    application = tiny_application()
    assert [application.gain(batch, 0) for batch in (4, 16)] == pytest.approx([1.0, 16 / 7])


def test_an_epoch_without_gradient_and_noise_is_refused():
    """Nothing is known of the gain there."""
    epochs = Epochs(np.ones(2), np.ones(2), np.array([1.0, 0.0]), np.array([1.0, 0.0]))
    with pytest.raises(ValueError, match="an epoch with batches of 4 has neither gradient nor noise"):
        Application("made", {"gpu": tiny_step_times()}, {4: epochs})


def test_a_limit_of_memory_replaces_the_measured_one():
    """Local batches go as far as was measured, or as far as they are allowed to."""
    assert tiny_application().batches["gpu"] == Limits(4, 16, 2, 8)
    assert tiny_application(JobLimits(most_local={"gpu": 3})).batches["gpu"] == Limits(4, 16, 2, 3)


def test_one_iteration_is_left_in_the_last_epoch():
    """A job in its last epoch counts as almost done."""
    assert tiny_application().iterations_left(4, 1) == 1.0


def test_a_batch_that_was_not_measured_is_refused():
    """Noise is not extrapolated to larger or smaller batches."""
    with pytest.raises(ValueError, match="17 samples; measured are 4 to 16"):
        tiny_application().noise(17, 0)


def test_an_iteration_on_packed_nodes_has_the_accumulation_of_one_device():
    """One device accumulates once; its second step has no synchronisation."""
    # Two parts of 2 samples, 1 s the second, and 0.5 s less the first.
    assert tiny_application().packed_iteration("gpu", 4, 1, node=2) == pytest.approx(1.0 + 0.5)


def test_nodes_are_filled_in_packed_placements():
    """Three devices on nodes of two are two and one."""
    step, _ = tiny_application().step_time("gpu", (2, 1), 4)
    assert tiny_application().packed_iteration("gpu", 12, 3, node=2) == pytest.approx(step)


def test_a_job_has_no_more_epochs_than_were_measured():
    """Limits beyond the trainings are refused."""
    with pytest.raises(ValueError, match="a job has 3 epochs; 2 were measured"):
        tiny_application(JobLimits(epochs=3))


def by_placement():
    """The model with the memory of placements: two on one node take 4 samples at once, others more."""
    times = tiny_step_times()
    two = np.array([2.0, 4.0]), times.placements[2,][1]
    three = np.array([2.0, 6.0]), times.placements[1, 2][1]
    measured = StepTimes({**times.placements, (2,): two, (1, 2): three}, times.scalability)
    ones = np.ones(1)
    trainings = {size: Epochs(ones, ones, ones, ones) for size in (4, 32)}
    return Application("made", {"gpu": measured}, trainings, JobLimits(memory_by_placement=True))


@pytest.mark.parametrize(("shape", "most"), [((1,), 8), ((2,), 4), ((2, 1), 6), ((2, 2), 8), ((9, 9), 8)])
def test_memory_may_count_by_placement(shape, most):
    """A placement has what was measured on it, or else on wider ones, or else on any."""
    assert by_placement().batches_at("gpu", shape) == Limits(4, 32, 2, most)


def test_memory_counts_for_all_placements_together_by_default():
    """The largest local batch of any placement is that of all."""
    assert tiny_application().batches_at("gpu", (2,)) == Limits(4, 16, 2, 8)


@pytest.mark.parametrize(("replicas", "local", "found"), [(2, 9, 8), (3, 9, 6), (5, 9, 6), (5, 5, 5)])
def test_a_local_batch_is_lessened_to_what_was_measured_with_as_many_replicas(replicas, local, found):
    """Where nothing was, the largest whole batch alone is a limit: five replicas of six make 30 of 32."""
    assert by_placement().fitting("gpu", replicas, local, 0) == found


def test_the_speed_of_one_device_is_its_largest_batch_by_its_longest_step():
    """Eight samples take 4 s."""
    assert tiny_application().single_speeds == {"gpu": 2.0}
