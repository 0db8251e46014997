"""Sizes by goodput: throughput times the efficiency of each sample (Pollux, section 3).

Times come from the policy's curves, with the best split of each size, and efficiency from the gradient noise
(Cannikin, section 4.5).
"""

import math
from typing import NamedTuple

from batchsize_manager.sizers.base import Choice, Situation, Sizer
from idl.noise import Noise

_STEPS = 4  # sizes tried up to twice, and down to half the present one


class Gain(NamedTuple):
    """The goodput of one batch size relative to another's.

    Attributes:
        least: The relative goodput with the noise scale, among those that the estimate allows, that is worst
            for the change.
    """

    throughput: float  # relative samples per second
    efficiency: float  # relative progress of a sample, with the likely noise scale
    least: float

    @property
    def likely(self) -> float:
        """The relative goodput with the likely noise scale."""
        return self.throughput * self.efficiency


def gain(noise: Noise, before: int, after: int, seconds_before: float, seconds_after: float) -> Gain:
    """Return the goodput of a batch size relative to that of another.

    Goodput is throughput times (φ + M₀)/(φ + M), (3) and (6) of Pollux; in the ratio of two, the first size
    M₀ falls out. A larger batch pays the less, the smaller φ is.

    Args:
        before: Samples of the one batch.
        after: Samples of the other.
        seconds_before: Seconds of an iteration with the one.
        seconds_after: Seconds of an iteration with the other.
    """
    throughput = (after / seconds_after) / (before / seconds_before)
    return Gain(
        throughput,
        noise.efficiency(after, before),
        throughput * noise.efficiency_interval(after, before)[0],
    )


class Goodput(Sizer):
    """A sizer that goes to the size with the best goodput, as far as it is known.

    Of each size counts the least gain that the noise's estimate allows, so that without any knowledge none
    seems better than the present one. A choice is at most twice or half the present size, since times are
    known near sizes that were measured.

    Args:
        promise: Change only for at least this share more goodput.
    """

    every = 10

    def __init__(self, promise: float) -> None:
        self._promise = promise

    def choose(self, at: Situation) -> Choice | None:
        """Return the size whose least gain is the largest; None while no times are known."""
        steps = range(-_STEPS, _STEPS + 1)
        others = sorted({at.rounded(at.size * 2 ** (step / _STEPS)) for step in steps} - {at.size})
        seconds = at.seconds([at.size, *others])
        if seconds is None or not others:
            return None
        gains = {
            size: gain(at.noise, at.size, size, seconds[0], its)
            for size, its in zip(others, seconds[1:], strict=True)
        }
        best = max(gains, key=lambda size: gains[size].least)
        its = gains[best]
        if math.isnan(its.likely):
            return Choice(at.size, "the gradient noise is not known yet")
        said = (
            f"{best:,} samples promise {its.likely:.2f} times the goodput of {at.size:,}, at least "
            f"{its.least:.2f}: {its.throughput:.2f} times the samples per second, each worth "
            f"{its.efficiency:.2f} times as much"
        )
        if its.least < 1 + self._promise:
            return Choice(at.size, f"{said}; a change must promise {1 + self._promise:g} times")
        return Choice(best, said)
