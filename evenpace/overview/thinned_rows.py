"""All of a job's iterations, a row of numbers each, thinned out among the older ones to bound their number.

Each row carries the sums so far, so that they stay exact whichever rows are dropped.
"""

from dataclasses import dataclass

import numpy as np

from evenpace.overview.rows import Rows
from evenpace.overview.statistics import Array
from idl.records import IterationRecord

MOST = 20_000  # rows kept at most
_COMPLETE = 2000  # last rows, of which none is dropped

ITERATION, EPOCH, TOTAL, DURATION = range(4)
EVEN = slice(4, 7)  # durations with an even split: by the flattest, the likely, and the steepest time curves
SIZES, TIMES, WAITS = slice(7, 10), slice(10, 13), slice(13, 16)  # minimum, median, maximum over workers
NOISE = 16  # the noise scale in samples, as it was known then; NaN where it was not
_SUMS, _SAVED = slice(17, 20), slice(20, 23)
_WIDTH = 23


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums over all iterations."""

    iterations: int  # number of iterations
    samples: int  # samples trained on
    seconds: float  # duration
    saved: Array  # seconds saved against an even split by each of the three cases of `EVEN`, (3,)


class ThinnedRows(Rows):
    """Rows of a job's iterations, the older ones thinned out."""

    def __init__(self) -> None:
        super().__init__((_WIDTH,), MOST)

    @property
    def last(self) -> int:
        """Return the last iteration; -1 without any."""
        return int(self.numbers[-1]) if len(self) else -1

    @property
    def sums(self) -> Sums:
        """Return the sums over all iterations that were added and not cut off."""
        if not len(self):
            return Sums(0, 0, 0.0, np.zeros(3))
        row = self.values[-1]
        count, samples, seconds = row[_SUMS].tolist()
        return Sums(int(count), int(samples), seconds, row[_SAVED].copy())

    def append(self, iteration: IterationRecord, noise_scale: float = np.nan) -> None:
        """Add an iteration above the last; its durations with an even split are unknown until `revise`.

        Args:
            iteration: The iteration.
            noise_scale: The noise scale in samples, as it is known with this iteration; NaN where it is not.
        """
        row = self._add(iteration.iteration)
        row[: EVEN.start] = (iteration.iteration, iteration.epoch, iteration.total, iteration.duration)
        row[EVEN] = np.nan
        row[SIZES] = _spread(iteration.batch_sizes)
        row[TIMES] = _spread(iteration.batch_processing_times[iteration.batch_sizes > 0])
        row[WAITS] = _spread(iteration.waiting_times)
        row[NOISE] = noise_scale
        row[_SUMS], row[_SAVED] = (1, iteration.total, iteration.duration), 0.0
        if len(self) > 1:
            row[_SUMS.start :] += self.values[-2, _SUMS.start :]

    def revise(self, even_durations: Array) -> None:
        """Set the durations that the last iterations would have had with an even split.

        Args:
            even_durations: Seconds, (iterations, 3), in the order of `EVEN`; NaN where it is not known. At
                most `_COMPLETE` iterations, none of which has been dropped.
        """
        first = len(self) - len(even_durations)
        rows = self.values[first:]
        rows[:, EVEN] = even_durations
        saved = np.nan_to_num(even_durations - rows[:, DURATION, None]).cumsum(axis=0)
        rows[:, _SAVED] = saved + (self.values[first - 1, _SAVED] if first else 0.0)

    def _drop(self) -> None:
        """Drop every other row but the last ones."""
        places = np.arange(len(self))
        self._keep((places % 2 == 0) | (places >= len(self) - _COMPLETE))


def _spread(values: np.ndarray) -> tuple[float, float, float]:
    """Return minimum, median and maximum of the finite values; NaN without any."""
    values = values[np.isfinite(values)]
    if not len(values):
        return (np.nan, np.nan, np.nan)
    return (values.min(), np.median(values), values.max())
