"""The life of a simulated job, against what is worked out by hand."""

import pytest

from lab.simulator.rules import JobLimits, Rules
from lab.simulator.training import SimulatedJob
from lab.simulator.workloads import Arrival
from tests.lab.simulator.tiny import tiny_application

ONE = (("gpu-0", 1),)
TWO = (("gpu-0", 1), ("gpu-1", 1))
FREE_MOVES = Rules(free_moves=True)


def job(batch=4, asked=True, submitted=0):
    """A job of the tiny model."""
    arrival = Arrival("tiny-0", submitted, "tiny", devices=1, batch=batch)
    return SimulatedJob(arrival, tiny_application(), Rules(), asks_batch=asked)


@pytest.mark.parametrize(
    ("batch", "placement", "epochs"),
    [
        (4, ONE, [50, 70]),  # an iteration takes 2 s: two epochs of 10 take 20 s each
        (16, TWO, [48, 66]),  # 16 samples take 4.2 s and count 16/7: 10 iterations' progress takes 18.4 s
        (16, ONE, [63, 96]),  # accumulated, 16 samples take 4 s and 3.5 s: 10 iterations' takes 32.8 s
    ],
)
def test_epochs_end_as_iterations_and_noise_have_them(batch, placement, epochs):
    """After the pause of 30 s, with a batch that gains as the noise allows; accumulation saves a step."""
    one = job(batch)
    one.place(placement, 60, "gpu")
    one.advance(60, 60)
    one.advance(120, 60)

    assert one.life.epochs == [60 + end for end in epochs]
    assert (one.life.started, one.life.ended, one.life.restarts) == (60, 60 + epochs[-1], 0)
    assert one.life.completion == one.life.ended


def test_progress_within_an_epoch_lasts():
    """Many short pieces end an epoch where one long one does."""
    one = job()
    one.place(ONE, 0, "gpu")
    for now in range(0, 70, 5):
        one.advance(now, 5)

    assert one.life.epochs == [50, 70]


def test_device_time_has_pauses_in_it_and_ends_with_the_job():
    """Two devices for 66 s, 30 s of them a pause, are 132 device-seconds."""
    one = job(16)
    one.place(TWO, 0, "gpu")
    one.advance(0, 60)
    one.advance(60, 60)

    assert one.life.device_seconds == 2 * 66


def test_a_job_without_devices_stands_still():
    """Nothing is used and nothing progresses while a job waits, also what is left of a pause."""
    one = job()
    one.place(ONE, 0, "gpu")
    one.advance(0, 20)
    one.place((), 20, "gpu")
    one.advance(20, 600)

    assert (one.life.device_seconds, one.life.epochs) == (20, [])


def test_each_change_among_devices_is_a_restart_with_a_pause():
    """The first start is none, and neither is the loss of all devices; a return and a move are."""
    one = job()
    for now, placement in ((0, ONE), (60, ()), (120, ONE), (180, (("gpu-1", 1),))):
        one.place(placement, now, "gpu")
        one.advance(now, 10)  # all within the pause

    assert one.life.restarts == 2
    assert one.life.placements == [(0, ONE), (60, ()), (120, ONE), (180, (("gpu-1", 1),))]
    assert one.life.epochs == []
    one.advance(190, 60)
    assert one.life.epochs == [180 + 30 + 20, 180 + 30 + 40]


def test_a_policy_sees_what_a_job_has_had():
    """Age, device time and restarts are those of the life so far, and the batch is the user's."""
    one = job(submitted=10)
    one.place(ONE, 60, "gpu")
    one.place(TWO, 120, "gpu")
    one.advance(120, 15)
    seen = one.seen(135, {"gpu": 2})

    assert (seen.age, seen.attained, seen.restarts, seen.batch, seen.devices) == (125, 30, 1, 4, None)


def test_remaining_time_is_that_of_the_iterations_from_the_end_of_this_epoch():
    """With 10 iterations in the epoch after this one, and 1.5 s for each on one device, 15 s remain."""
    assert job().seen(0, {"gpu": 2}).seconds_left(1) == pytest.approx(10 * 1.5)


def test_a_job_uses_as_many_devices_as_its_batch_feeds():
    """Each device has at least 2 samples, the fewest that were measured."""
    assert job(batch=7).seen(0, {"gpu": 2}).most_devices == 3


def mixed_job(rules=FREE_MOVES, **limits):
    """A job of a model that was measured on two kinds of devices, alike."""
    application = tiny_application(JobLimits(**limits), kinds=("slow", "fast"))
    return SimulatedJob(Arrival("tiny-0", 0, "tiny", 1, 4), application, rules, asks_batch=True)


def test_a_move_of_the_same_shape_may_be_free():
    """Other nodes of the same kind are no restart; another kind, other numbers and a return are."""
    one = mixed_job(restart_cost=7)
    moved = (("gpu-1", 1),)
    restarts = []
    for placement, kind in ((ONE, "slow"), (moved, "slow"), (moved, "fast"), (TWO, "fast"), ((), "fast")):
        one.place(placement, 0, kind)
        restarts.append(one.life.restarts)
    one.place(TWO, 0, "fast")

    assert restarts == [0, 0, 1, 2, 2]
    assert one.life.restarts == 3


def test_a_pause_lasts_as_long_as_the_model_needs():
    """A model's own cost counts, unless the rules have one for all; the first start has it, too."""
    ends = []
    for rules in (Rules(), Rules(restart_cost=3)):
        one = mixed_job(rules, restart_cost=7)
        one.place(ONE, 0, "slow")
        one.advance(0, 60)
        ends.append(one.life.ended)

    assert ends == [7 + 40, 3 + 40]


def test_a_slowdown_makes_training_longer():
    """Each second that was measured takes one and a half."""
    one = mixed_job(slowdown=1.5)
    one.place(ONE, 0, "slow")
    one.advance(0, 100)

    assert one.life.ended == 30 + 60


def test_a_policy_sees_a_pause():
    """It is on from a change to its end, and a job that waits has none."""
    one = mixed_job(restart_cost=50)
    one.place(ONE, 0, "slow")
    seen = []
    for now in (0, 40, 80):
        seen.append(one.seen(now, {"slow": 1, "fast": 1}).paused)
        one.advance(now, 40)
    one.place(TWO, 120, "slow")
    one.place((), 120, "slow")

    assert seen == [True, True, False]
    assert not one.seen(120, {"slow": 1, "fast": 1}).paused


def test_a_policy_may_be_told_the_speed_on_each_kind():
    """Iterations per second with the user's devices and batch, on packed nodes, slowdown and all."""
    speed = mixed_job(slowdown=2.0).seen(0, {"slow": 1, "fast": 2}).iterations_per_second
    assert speed("fast") == pytest.approx(1 / (1.5 * 2))


def test_a_policy_may_plan_up_to_the_batch_of_the_user():
    """What it sees has the user's batch as the largest, and is the same object until something is learned."""
    arrival = Arrival("tiny-0", 0, "tiny", 1, 8)
    one = SimulatedJob(arrival, tiny_application(), Rules(), limits_batch=True)
    one.place(ONE, 0, "gpu")
    one.advance(0, 35)
    seen = one.seen(35, {"gpu": 2}).goodputs["gpu"]

    assert (seen.limits.initial, seen.limits.largest) == (4, 8)
    assert one.seen(35, {"gpu": 2}).goodputs["gpu"] is seen
