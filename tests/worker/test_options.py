"""The optimiser's options of each iteration, as one worker knows them, without any service."""

import tracemalloc

from idl.layout import Group
from worker.step_options import StepOptions


def groups(rate):
    """Make groups with a learning rate."""
    return (Group(3, {"lr": rate}),)


def test_each_iteration_has_the_options_that_hold():
    """An iteration has the first options, or those of the last change."""
    options = StepOptions(groups(1.0))
    options_of_iterations = [options.at(i, groups(0.1 * i) if i % 2 else None) for i in range(1, 5)]
    assert options_of_iterations == [groups(0.1), groups(0.1), groups(0.1 * 3), groups(0.1 * 3)]
    assert StepOptions().at(0) is None


def test_iterations_that_come_again_have_the_options_that_they_had():
    """A repeated iteration keeps its options; changes made meanwhile hold from the next new one."""
    options = StepOptions(groups(1.0))
    for iteration in range(6):
        options.at(iteration, groups(iteration) if iteration in {2, 4} else None)
    again = [options.at(1, groups(9.0)), *(options.at(i) for i in range(2, 8))]
    assert again == [groups(1.0), groups(2), groups(2), groups(4), groups(4), groups(9.0), groups(9.0)]


def test_a_worker_says_nothing_of_iterations_before_it_came():
    """A worker has no options of iterations before it joined."""
    options = StepOptions(groups(1.0))
    options.at(5)
    assert options.at(3) is None


def test_a_schedule_that_is_stepped_in_each_iteration_takes_little_memory():
    """Of 60 groups with five options, some 3 KiB an iteration."""
    options = StepOptions()
    tracemalloc.start()
    try:
        for iteration in range(500):
            rate = 1 / (iteration + 1)
            values = {"lr": rate, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01}
            options.at(iteration, [Group(10, dict(values)) for _ in range(60)])
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken / 500 < 5000
    assert [group.options["lr"] for group in options.at(123)] == [1 / 124] * 60
