"""Numbers of devices and jobs over time, against counts of each second and lives worked out by hand."""

import numpy as np
import pytest

from lab.simulations.panels import averages, devices_in_use, queue
from lab.simulator.record import Life

LIVES = [
    Life("a", "tiny", 0, started=20, ended=80, placements=[(20, (("gpu-0", 2), ("gpu-1", 1))), (50, ())]),
    Life("b", "tiny", 40, started=40, ended=60, placements=[(40, (("gpu-1", 1),))]),
]
EDGES = np.array([0.0, 20.0, 40.0, 60.0, 80.0, 100.0])


@pytest.mark.parametrize(
    ("amounts", "expected"),
    [
        # Three devices are in use from 20 s to 50 s, and one from 40 s to 60 s.
        (devices_in_use(LIVES), [0, 3, (30 + 20) / 20, 0, 0]),
        # The first job waits before its start, for 20 s, and without devices, from 50 s to its end.
        (queue(LIVES), [1, 0, 0.5, 1, 0]),
        ([], [0] * 5),
    ],
)
def test_devices_and_the_queue_are_those_of_all_jobs(amounts, expected):
    """As averages between the edges."""
    assert averages(amounts, EDGES).tolist() == expected
