"""A model of two epochs with round numbers, whose training can be worked out by hand."""

import numpy as np

from lab.simulator.applications import Application, Epochs, StepTimes

LOCALS = np.array([2.0, 8.0])
SQR, VAR = 1.0, 3.0  # with batches of 16, 4 times the initial, the gain is (3 + 1) / (3 / 4 + 1) = 16 / 7


def step_time(nodes, replicas, local):
    """Step and synchronisation of most placements; linear, so that it is known between them, too."""
    return [0.1 * nodes + 0.05 * replicas + 0.5 * local, 0.1 * nodes]


def tiny_step_times():
    """Step times of one device, of two in two placements, and of three and six on three nodes."""
    placements = {
        (1,): (LOCALS, np.array([[1.0, 0.5], [4.0, 0.5]])),
        (1, 1): (LOCALS, np.array([[1.5, 1.0], [4.2, 1.0]])),
    }
    for shape in ((2,), (1, 2)):
        seconds = np.array([step_time(len(shape), sum(shape), local) for local in LOCALS])
        placements[shape] = LOCALS, seconds
    wide = np.array([(3, replicas, local) for replicas in (3, 6) for local in LOCALS], dtype=float)
    return StepTimes(placements, (wide, np.array([step_time(*row) for row in wide])))


def tiny_application(limits=None, kinds=("gpu",)):
    """The model: 2 to 8 samples at once, batches of 4 to 16, epochs that end at a progress of 10 and 20."""
    noise = np.array([SQR, SQR]), np.array([VAR, VAR])
    trainings = {
        4: Epochs(np.array([10.0, 20.5]), np.array([10.0, 20.0]), *noise),
        16: Epochs(np.array([10.5, 20.0]), np.array([4.0, 8.0]), *noise),
    }
    return Application("tiny", dict.fromkeys(kinds, tiny_step_times()), trainings, limits)
