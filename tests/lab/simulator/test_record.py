"""Lives of simulated jobs and figures over them, against lives worked out by hand."""

import pytest

from lab.simulator.record import Life, summary

ONE = (("gpu-0", 1),)
TWO = (("gpu-0", 1), ("gpu-1", 1))


def moved():
    """A job that waits 20 s, has one device for 30 s, none for 10 s, and two for 40 s."""
    return Life(
        "moved",
        "tiny",
        submitted=100,
        started=120,
        ended=200,
        restarts=1,
        device_seconds=30 + 2 * 40,
        placements=[(120, ONE), (150, ()), (160, TWO)],
    )


def short():
    """A job with one device for 50 s from its submission."""
    return Life("short", "tiny", 150, started=150, ended=200, device_seconds=50, placements=[(150, ONE)])


def test_a_life_is_waiting_and_running():
    """A job waits before its start and whenever its devices are taken away."""
    life = moved()
    assert (life.waited, life.ran, life.completion) == (20 + 10, 30 + 40, 100)


@pytest.mark.parametrize(
    ("figure", "value"),
    [
        ("utilisation", 160 / (4 * 200)),  # of the device-seconds of four devices until the last end
        ("mean_queue", 30 / 200),  # one waits for 30 of 200 s
        ("median_completion_s", 75),  # in the middle between 100 s and 50 s
    ],
)
def test_figures_of_two_lives(figure, value):
    """Worked out by hand."""
    assert summary([moved(), short()], [1.0, 1.0], devices=4)[figure] == value


def test_fairness_is_summed_up_by_share_and_percentiles():
    """A rho of 2 is not below it; the 99th percentile lies between the last two, near the last."""
    figures = summary([moved(), short(), short()], [0.5, 2.0, 3.0], devices=4)

    assert figures["rho_below_2"] == 1 / 3
    assert (figures["median_rho"], figures["worst_rho"]) == (2.0, 3.0)
    assert figures["p99_rho"] == pytest.approx(2.98)
