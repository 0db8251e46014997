"""The noise of gradients as a value, with what follows from it for batches of other sizes.

A pure value of a few numbers. This module knows no gradients, and nothing of how the noise was estimated.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

_ERRORS = 2.0  # standard errors on each side of an interval: about 95%
_FACTOR = 4.0  # between the ends of the noise scale's interval, at most, for it to be known


@dataclass(frozen=True, slots=True)
class Noise:
    """The gradient noise: the true gradient's squared norm, one sample's variance, and their errors.

    Estimates are unbiased, and so may be zero or negative where there is little to see.
    """

    sqr: float  # |G|², the squared norm of the true gradient
    var: float  # tr(Σ), the trace of the covariance of one sample's gradient
    # Standard error of `sqr`; 0 for a value that is exact, inf where nothing is known of it.
    sqr_error: float = 0.0
    var_error: float = 0.0  # standard error of `var`, likewise
    covariance: float = 0.0  # covariance of the errors of the two

    @property
    def scale(self) -> float:
        """The noise scale φ = tr(Σ)/|G|² in samples: at this batch size, noise and gradient are equal.

        It is inf where only `sqr` is not positive, 0 where only `var` is not, and NaN where neither is.
        """
        if self.sqr <= 0:
            return math.inf if self.var > 0 else math.nan
        return self.var / self.sqr if self.var > 0 or math.isnan(self.var) else 0.0

    def interval(self, errors: float = _ERRORS) -> tuple[float, float]:
        """Return the least and the greatest noise scale, in samples, that the estimates allow.

        These are the values that Fieller's theorem gives for the ratio of two estimates. Where errors are
        small, they are those of the delta method; unlike its, they hold where `sqr` is known poorly, and the
        greatest is inf where `sqr` may be 0. Without any knowledge they are 0 and inf.

        Args:
            errors: Number of standard errors to allow for, above 0.
        """
        if not all(map(math.isfinite, (self.sqr, self.var, self.sqr_error, self.var_error, self.covariance))):
            return 0.0, math.inf
        # In units in which both are at most 1, so that no square leaves the range of numbers.
        sqr_unit = abs(self.sqr) + errors * self.sqr_error or 1.0
        var_unit = abs(self.var) + errors * self.var_error or 1.0
        sqr, sqr_error = max(self.sqr, 0.0) / sqr_unit, errors * self.sqr_error / sqr_unit
        var, var_error = max(self.var, 0.0) / var_unit, errors * self.var_error / var_unit
        # The ratios x for which |var - x sqr| is within its own error: a x² - 2 b x + c <= 0.
        a = sqr * sqr - sqr_error * sqr_error
        b = sqr * var - errors * (self.covariance / sqr_unit) * (errors / var_unit)
        c = var * var - var_error * var_error
        root = b + math.sqrt(max(b * b - a * c, 0.0))
        low = 0.0 if c <= 0 else c / root if root > 0 else math.inf
        high = root / a if a > 0 else math.inf
        return low * (var_unit / sqr_unit), high * (var_unit / sqr_unit)

    @property
    def is_known(self) -> bool:
        """Whether the noise scale is known to about a factor of two each way, by two standard errors."""
        low, high = self.interval()
        return high <= _FACTOR * low or high == 0

    @property
    def known_scale(self) -> float | None:
        """The noise scale, in samples, where it `is_known`, and finite; else None."""
        return self.scale if self.is_known and math.isfinite(self.scale) else None

    def efficiency(self, batch: float, baseline: float) -> float:
        """Return the progress per sample with one batch size, relative to another: (6) of Pollux.

        NaN where the noise scale is; 1 where that is inf.

        Args:
            batch: Samples of the whole batch.
            baseline: Samples of the batch whose efficiency is 1.

        Raises:
            ValueError: A size is not above 0.
        """
        _check_above_zero("batch", batch)
        _check_above_zero("baseline", baseline)
        return float(statistical_efficiency(self.scale, batch, baseline))

    def efficiency_interval(
        self, batch: float, baseline: float, errors: float = _ERRORS
    ) -> tuple[float, float]:
        """Return the least and the greatest efficiency that the estimates allow; arguments as above.

        Raises:
            ValueError: A size is not above 0.
        """
        _check_above_zero("batch", batch)
        _check_above_zero("baseline", baseline)
        ends = [float(statistical_efficiency(scale, batch, baseline)) for scale in self.interval(errors)]
        return min(ends), max(ends)

    def similarity(self, batch: float) -> float:
        """Return the expected cosine of the gradients of a batch's two halves: 1 / (1 + 2φ/B).

        It is what JABAS (section 6.1) compares with a threshold. NaN where the noise scale is.

        Args:
            batch: Samples of the whole batch, B.

        Raises:
            ValueError: The size is not above 0.
        """
        _check_above_zero("batch", batch)
        return 1 / (1 + 2 * self.scale / batch)


def statistical_efficiency(scale: ArrayLike, batch: ArrayLike, first: float) -> Any:
    """Return the progress per sample, relative to that in batches of a job's first size: (6) of Pollux.

    Batches above the first size have less than 1, those below it more.

    Args:
        scale: Noise scale in samples, at least 0; NaN where it is not known.
        batch: Samples of the whole batch, above 0; it is broadcast with `scale`.
        first: The size, in samples above 0, whose efficiency is 1.

    Returns:
        A number, or an array; NaN where the noise scale is, 1 where that is inf.
    """
    with np.errstate(invalid="ignore"):  # inf / inf
        efficiency = np.divide(np.add(scale, first), np.add(scale, batch))
    return np.where(np.isinf(scale), 1.0, efficiency)[()]


def _check_above_zero(name: str, value: float) -> None:
    if not value > 0:
        raise ValueError(f"{name} {value}: must be above 0")
