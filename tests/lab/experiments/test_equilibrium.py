"""Equilibrium of workers' times, computed by hand."""

import pytest

from lab.experiments import equilibrium


def record(iteration, *parts):
    """A record; each part is a worker's batch size and seconds."""
    workers = {
        f"w{i}": {"batch_size": size, "batch_processing_time": seconds}
        for i, (size, seconds) in enumerate(parts)
    }
    return {"iteration": iteration, "total": sum(size for size, _ in parts), "workers": workers}


def trajectory(*times):
    """Iterations with these times, (workers,) each, and batches of 10 for every worker."""
    return equilibrium.trajectory(
        [record(i, *((10, seconds) for seconds in row)) for i, row in enumerate(times)], 10 * len(times[0])
    )


def test_smaller_batches_are_left_out():
    """The last batch of an epoch is of another size, and so are its times."""
    shown = equilibrium.trajectory(
        [record(0, (6, 1), (4, 2)), record(1, (2, 9), (1, 9)), record(2, (5, 3), (5, 4))], 10
    )

    assert shown.iterations.tolist() == [0, 2]
    assert shown.batch_sizes.tolist() == [[6, 4], [5, 5]]
    assert shown.times.tolist() == [[1, 2], [3, 4]]


def test_equal_times_are_reached_once_a_whole_window_shows_them():
    """A slow iteration in a window of three does not count; unequal ones do until they are outnumbered."""
    shown = trajectory((1, 3), (1, 3), (2, 2), (2, 9), (2, 2))
    found = equilibrium.phase(shown, 3, 0.1)

    assert found.reached == 5
    assert found.times == {"w0": 2, "w1": 2}
    assert found.batch_sizes == {"w0": 10, "w1": 10}
    assert found.imbalance == 1


def test_a_change_shows_in_the_iterations_beside_it():
    """The slowdown is from 2 s before a change to 6 s after it; later iterations do not count."""
    shown = trajectory((9, 1), (2, 1), (2, 1), (6, 1), (6, 1), (2, 1))

    assert equilibrium.slowdown(shown.part(0, 3), shown.part(3), "w0", 2) == 3
    assert equilibrium.slowdown(shown.part(0, 3), shown.part(3), "w1", 2) == 1
    with pytest.raises(ValueError, match="no worker 'w7'"):
        equilibrium.slowdown(shown, shown, "w7", 2)
    with pytest.raises(ValueError, match="before and after"):
        equilibrium.slowdown(shown, shown.part(99), "w0", 2)
