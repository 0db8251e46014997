"""Fits for tests of who runs them, small enough to be checked by hand."""

import os
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Double:
    """Learns twice the number that it was given, and in which process."""

    number: float

    def run(self):
        """See `predictors.Fit`."""
        return {"doubled": np.array([2 * self.number]), "process": np.array([os.getpid()])}


@dataclass(frozen=True)
class Refuse:
    """Cannot learn."""

    def run(self):
        """See `predictors.Fit`."""
        raise ValueError("nothing to be learnt here")


@dataclass(frozen=True)
class Die:
    """Takes its process with it."""

    def run(self):
        """See `predictors.Fit`."""
        os._exit(3)


@dataclass(frozen=True)
class Endless:
    """Opens a file to say that it runs, and never ends."""

    started: str

    def run(self):
        """See `predictors.Fit`."""
        with open(self.started, "w") as stream:
            stream.write(str(os.getpid()))
        while True:
            pass
