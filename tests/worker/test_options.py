"""What a shard is told of the optimiser's options, and when; decisions without any service."""

from worker.layout import Group
from worker.options import Options


def groups(rate):
    """Groups with a learning rate."""
    return (Group(3, {"lr": rate}),)


def test_options_are_told_when_they_change():
    """And with no other gradient, nor with a further slice of the same iteration."""
    options = Options()
    told = [options.due(i, groups(0.1 * i) if i % 2 else None) for i in range(5)]
    assert told == [None, groups(0.1), None, groups(0.1 * 3), None]
    assert options.due(5, groups(1.0)) == groups(1.0)
    assert options.due(5, None) is None


def test_after_a_rewind_each_iteration_has_its_own_options_again():
    """What the loop's schedule has come to meanwhile holds from the first iteration that is new."""
    options = Options()
    for iteration in range(6):
        options.due(iteration, groups(iteration) if iteration in {2, 4} else None)
    options.rewind(2)
    assert [options.due(2, groups(9.0)), *(options.due(i, None) for i in range(3, 8))] == [
        groups(2),
        None,
        groups(4),
        None,
        groups(9.0),
        None,
    ]


def test_options_of_an_iteration_in_which_this_worker_has_no_part_are_told_in_the_next():
    """Nobody else may be left who would tell them."""
    options = Options()
    for iteration in range(4):
        options.due(iteration, groups(iteration) if iteration == 2 else None)
    options.rewind(1)
    assert options.due(3, None) == groups(2)
