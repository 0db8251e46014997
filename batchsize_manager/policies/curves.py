"""Time curves of workers: their form, their fit to measured times, and the split that follows from them.

A GPU's time is flat while launching kernels takes longer than running them, then grows in a line with
the batch size (LB-BSP, section 3.3.1). Arrays in, arrays out, for all workers at once; no state.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from batchsize_manager.policies.solver import fill_to_level
from predictors import Array

_USUAL_ELASTICITY = 0.7  # relative growth of the time over that of the batch size, before any is seen
_ELASTICITY_SPREAD = 0.6
_UNSEEN_ELASTICITY = 0.5  # at the least, beyond the largest batch that was seen
_HOPED_ELASTICITY = 0.3  # at the least, below the smallest batch that was seen
_LEAST_ELASTICITY = 1e-3  # a flat part rises a little, so that times only ever grow
_MISFIT = 0.15  # relative error of a line for each factor of e between two batch sizes
_TIE = 1e-9  # squared deviations that are rounding errors
_LOGISTIC = 1.702  # steepness of the logistic function that is closest to the normal distribution's
_FAR = 20.0  # standard deviations, beyond which the normal distribution is 0 or 1
_KNEE_COST = 2.0  # squared deviations that a flat part must explain to be assumed


@dataclass(frozen=True)
class Curves:
    """The workers' times: `level` up to `threshold` units, then `per_unit` more for each unit.

    Beyond `reach` the time is taken to grow at least half as fast as the batch, lest a worker that was only
    measured in its flat part be given everything at once. Below `least` it is taken to fall a little even if
    the curve seems flat: a straggler is tried with less until that does not help. All arrays are (workers,).
    """

    level: Array  # seconds; launch overhead and all else that does not depend on the batch size
    threshold: Array  # units up to which the worker is not saturated
    per_unit: Array  # seconds for each unit beyond the threshold, above 0
    least: Array  # units; the smallest batch size that was measured
    reach: Array  # units; the largest batch size that was measured
    error: Array  # relative standard deviation of the times near the batch sizes that the fit is centred on
    middle: Array  # units; the weighted geometric mean of the batch sizes that were measured
    per_unit_error: Array  # seconds; standard deviation of `per_unit`

    def fitted(self, counts: Array) -> Array:
        """Return seconds as fitted, also beyond the measured batch sizes; (..., workers), as `counts` is."""
        times: Array = self.level + self.per_unit * np.maximum(0.0, counts - self.threshold)
        return times

    def tilted(self, probability: float) -> "Curves":
        """Return the curves with the slopes that the true ones are below with a probability.

        They have the same times at `middle`. A slope is taken to be normally distributed between the values
        where the curve would fall, and where its level would be below 0.
        """
        excess = np.maximum(0.0, self.middle - self.threshold)
        time = self.level + self.per_unit * excess
        flattest = _LEAST_ELASTICITY * time / self.middle
        with np.errstate(divide="ignore"):
            steepest = np.maximum(flattest, (1 - _LEAST_ELASTICITY) * time / excess)
        bounds = np.stack([flattest, steepest])
        below, most = _normal((bounds - self.per_unit) / np.maximum(self.per_unit_error, 1e-300))
        share = below + probability * (most - below)
        slope = self.per_unit + self.per_unit_error * np.log(share / (1 - share)) / _LOGISTIC
        slope = np.clip(slope, flattest, steepest)
        return replace(self, level=time - slope * excess, per_unit=slope)

    def lines(self) -> tuple[Array, Array]:
        """Return offsets and slopes of three lines, (3, workers) each; the time is the uppermost of them."""
        saturated = self.level - self.per_unit * self.threshold
        at_reach = self.level + self.per_unit * np.maximum(0.0, self.reach - self.threshold)
        beyond = np.maximum(self.per_unit, _UNSEEN_ELASTICITY * at_reach / self.reach)
        rise = _LEAST_ELASTICITY * self.level / np.maximum(self.threshold, self.reach)
        # With a very flat line after the threshold, the level's own rise must not exceed it.
        rise = np.minimum(rise, self.per_unit)
        return (
            np.stack([self.level, saturated, at_reach - beyond * self.reach]),
            np.stack([rise, self.per_unit, beyond]),
        )

    def times(self, counts: Array) -> Array:
        """Return the seconds that each worker takes for its batch, (workers,)."""
        offsets, slopes = self.lines()
        times: Array = (offsets + slopes * counts).max(axis=0)
        offset, slope = self.hope()
        return np.where(counts < self.least, np.minimum(times, offset + slope * counts), times)

    def processing_times(self, counts: Array) -> Array:
        """Return the seconds of each worker's batch processing time, (workers,)."""
        return self.times(counts)

    def hope(self) -> tuple[Array, Array]:
        """Return offset and slope, (workers,) each, of the line that times below `least` do not exceed."""
        offsets, slopes = self.lines()
        at_least = (offsets + slopes * self.least).max(axis=0)
        return (1 - _HOPED_ELASTICITY) * at_least, _HOPED_ELASTICITY * at_least / self.least

    def equal_time(self) -> "EqualTime":
        """Return the curves for `split_evenly_in_time`."""
        return EqualTime(self)

    def scaled(self, factor: float) -> "Curves":
        """Return the curves with all times multiplied by a factor."""
        level, per_unit, error = self.level * factor, self.per_unit * factor, self.per_unit_error * factor
        return replace(self, level=level, per_unit=per_unit, per_unit_error=error)

    def where(self, known: NDArray[np.bool_], other: "Curves") -> "Curves":
        """Return the curves of the workers in `known`, (workers,), and those of `other` of the rest."""
        return Curves(*(np.where(known, *both) for both in zip(self._arrays(), other._arrays(), strict=True)))

    def averaged_over(self, known: NDArray[np.bool_]) -> "Curves":
        """Return the curves with the mean of those in `known`, (workers,), in place of all others."""
        if known.all() or not known.any():
            return self
        return Curves(*(np.where(known, array, array[known].mean()) for array in self._arrays()))

    def without(self, rows: Sequence[int]) -> "Curves":
        """Return the curves of all workers but those in `rows`."""
        return Curves(*(np.delete(array, rows) for array in self._arrays()))

    def at(self, rows: NDArray[np.int64]) -> "Curves":
        """Return the curves of some workers."""
        return Curves(*(array[rows] for array in self._arrays()))

    def _arrays(self) -> tuple[Array, ...]:
        return tuple(getattr(self, field.name) for field in fields(self))


class EqualTime:
    """Curves as the `TimeCurves` of `split_evenly_in_time`."""

    def __init__(self, curves: Curves) -> None:
        self._curves = curves
        self._offsets, self._slopes = curves.lines()
        self._hope = curves.hope()
        rows = np.stack([*self._offsets, *self._slopes, *self._hope, curves.least])
        self._rows: list[list[float]] = rows.T.tolist()

    def time(self, worker: int, count: float) -> float:
        """Return the seconds of one worker; see `TimeCurves.time`."""
        a, b, c, u, v, w, offset, slope, least = self._rows[worker]
        time = max(a + u * count, b + v * count, c + w * count)
        return time if count >= least else min(time, offset + slope * count)

    def fill(self, total: int, low: NDArray[np.int64], high: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return counts just below the best split; see `TimeCurves.fill`."""
        return fill_to_level(self.time, self.within, total, low, high)

    def within(self, level: float | Array) -> Array:
        """Return the most units of each worker within a time in seconds, as real numbers; (workers,)."""
        sizes: Array = ((level - self._offsets) / self._slopes).min(axis=0)
        offset, slope = self._hope
        least = self._curves.least
        return np.maximum(sizes, np.minimum((level - offset) / slope, np.nextafter(least, 0)))


def _normal(deviations: Array) -> Array:
    """Return the normal distribution function, approximated by a logistic one to 0.01."""
    values: Array = 1 / (1 + np.exp(-_LOGISTIC * np.clip(deviations, -_FAR, _FAR)))
    return values


def fit(sizes: Array, times: Array, variances: Array, centres: Array, misfit: float = _MISFIT) -> Curves:
    """Fit a curve to each worker's measured times, those near its centre counting most.

    The fit is by weighted least squares of relative errors. For each of the candidate thresholds, level and
    slope have a closed form; the threshold with the smallest sum is taken. Where the measurements hardly
    determine the slope, a usual one is assumed.

    Args:
        sizes: Batch sizes in units, (workers, measurements); ignored where the variance is infinite.
        times: Batch processing times in seconds, (workers, measurements).
        variances: Relative variances of the times, (workers, measurements); infinite: no measurement.
        centres: Batch sizes in units near which the curves should be right, (workers,).
        misfit: Relative error of a line for each factor of e between a measurement and the centre.
    """
    known = np.isfinite(variances)
    sizes, times = np.where(known, sizes, centres[:, None]), np.where(known, times, 1.0)
    distance = np.log(sizes / centres[:, None])
    weights = 1 / (variances + (misfit * distance) ** 2)  # (workers, measurements), 0 where there is none
    whole = np.maximum(weights.sum(axis=1, keepdims=True), 1e-300)
    # All is in units of the worker's average measurement, so that nothing depends on the scale.
    size_unit = np.exp((weights * np.log(sizes)).sum(axis=1, keepdims=True) / whole)
    time_unit = np.exp((weights * np.log(times)).sum(axis=1, keepdims=True) / whole)
    x, t = sizes / size_unit, times / time_unit

    thresholds = np.concatenate([np.zeros_like(size_unit), x, 0.75 * x], axis=1)  # (workers, choices)
    excess = np.maximum(0.0, x[:, None, :] - thresholds[:, :, None])  # (workers, choices, measurements)
    u, v, w = (1 / t)[:, None, :], excess / t[:, None, :], weights[:, None, :]
    prior = 1 / _ELASTICITY_SPREAD**2
    wu, wv = w * u, w * v
    uu, uv, vv = (wu * u).sum(-1), (wu * v).sum(-1), (wv * v).sum(-1) + prior
    su, sv = wu.sum(-1), wv.sum(-1) + prior * _USUAL_ELASTICITY
    determinant = np.maximum(uu * vv - uv**2, 1e-300)
    slope = (uu * sv - uv * su) / determinant
    slope = np.maximum(slope, _LEAST_ELASTICITY)
    level = (su - uv * slope) / np.maximum(uu, 1e-300)
    negative = level < _LEAST_ELASTICITY
    slope = np.where(negative, np.maximum(_LEAST_ELASTICITY, (sv - _LEAST_ELASTICITY * uv) / vv), slope)
    level = np.where(negative, _LEAST_ELASTICITY, level)
    left = (w * (level[:, :, None] * u + slope[:, :, None] * v - 1) ** 2).sum(-1)
    left += prior * (slope - _USUAL_ELASTICITY) ** 2 + _KNEE_COST * (thresholds > 0)
    # Of thresholds that are equally good but for rounding, the first: the choice depends on no unit.
    least = left.min(axis=1, keepdims=True) * (1 + _TIE) + _TIE
    best = (np.arange(len(sizes)), (left <= least).argmax(axis=1))
    size_unit, time_unit = size_unit[:, 0], time_unit[:, 0]
    # A worker without measurements is treated as if it had one at its centre.
    shown = np.where(known.any(axis=1, keepdims=True) & ~known, np.nan, sizes)
    return Curves(
        level[best] * time_unit,
        thresholds[best] * size_unit,
        slope[best] * time_unit / size_unit,
        np.nanmin(shown, axis=1),
        np.nanmax(shown, axis=1),
        1 / np.sqrt(whole[:, 0]),
        size_unit,
        np.sqrt((uu / determinant)[best]) * time_unit / size_unit,
    )
