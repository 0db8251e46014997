"""The life of a simulated job, against what is worked out by hand."""

from lab.simulator.rules import JobLimits, Rules
from lab.simulator.training import SimulatedJob
from lab.simulator.workloads import Arrival
from scheduler.policies.base import Policy
from tests.lab.simulator.tiny import tiny_application

ONE = (("gpu-0", 1),)
TWO = (("gpu-0", 1), ("gpu-1", 1))
FREE_MOVES = Rules(free_moves=True)
ASKING = type("Asking", (Policy,), {"users_choose_batch": True})


def job(batch=4, asked=True, submitted=0):
    """A job of the tiny model."""
    arrival = Arrival("tiny-0", submitted, "tiny", devices=1, batch=batch)
    return SimulatedJob(arrival, tiny_application(), Rules(), ASKING if asked else Policy)


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


def mixed_job(rules=FREE_MOVES, **limits):
    """A job of a model that was measured on two kinds of devices, alike."""
    application = tiny_application(JobLimits(**limits), kinds=("slow", "fast"))
    return SimulatedJob(Arrival("tiny-0", 0, "tiny", 1, 4), application, rules, ASKING)


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
