"""The optimiser's options of each iteration, as one worker knows them, without any service."""

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
