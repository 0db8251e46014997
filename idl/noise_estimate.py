"""The estimate of the gradient noise over iterations, from the norms of each one's gradients.

A pure value of a few numbers; nothing here knows gradients, workers, shards or the wire.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement

from idl.gradient_norms import GradientNorms, StepNorms
from idl.noise import Noise

_LEAST_OBSERVATIONS = 10.0  # fewer say too little about their own spread
_SHORTER = 3.0  # the long horizon over the short one
_LEFT = 1 / (_SHORTER - 1)  # of the means' difference, what the short one lags behind a linear drift
_PAIRS = tuple(combinations_with_replacement(range(4), 2))


@dataclass(frozen=True, slots=True)
class DecayedMeans:
    """Weighted means of the iterations' own estimates of var and sqr; older iterations count less."""

    sums: tuple[float, ...] = (0.0,) * 4  # decayed sums of (n - 1, (n - 1) S, B, B G)
    products: tuple[float, ...] = (0.0,) * len(_PAIRS)  # decayed sums of the products of each two of these

    def observe(self, new: Sequence[float], keep: float) -> "DecayedMeans":
        """Return the means with one more iteration.

        Args:
            new: Its (n - 1, (n - 1) S, B, B G).
            keep: The factor by which the weights of all earlier ones fall, above 0 and below 1.
        """
        return DecayedMeans(
            tuple(keep * old + one for old, one in zip(self.sums, new, strict=True)),
            tuple(
                keep * keep * old + new[i] * new[j] for old, (i, j) in zip(self.products, _PAIRS, strict=True)
            ),
        )

    @property
    def is_finite(self) -> bool:
        """True if all sums are numbers."""
        return all(map(math.isfinite, self.sums + self.products))

    @property
    def weights(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """The sum of weights and the sum of their squares, of var and of sqr."""
        return (self.sums[0], self.products[0]), (self.sums[2], self.products[7])

    @property
    def noise(self) -> Noise:
        """The means, with the errors that the spread gives; errors are inf for the first iterations."""
        (u, us, v, vg), (uu, uus, uv, uvg, usus, usv, usvg, vv, vvg, vgvg) = self.sums, self.products
        var, sqr = us / u, vg / v
        if min(u * u / uu, v * v / vv) < _LEAST_OBSERVATIONS:
            return Noise(sqr, var, math.inf, math.inf)
        # Sums of squared, weighted residuals; a mean's residuals are too small by what the mean adapts.
        var_unit, sqr_unit = math.sqrt(u * u - uu), math.sqrt(v * v - vv)
        var_square = max(usus - 2 * var * uus + var * var * uu, 0.0)
        sqr_square = max(vgvg - 2 * sqr * vvg + sqr * sqr * vv, 0.0)
        both = usvg - sqr * usv - var * uvg + var * sqr * uv
        return Noise(
            sqr,
            var,
            math.sqrt(sqr_square) / sqr_unit,
            math.sqrt(var_square) / var_unit,
            both / (sqr_unit * var_unit),
        )


@dataclass(frozen=True, slots=True)
class NoiseEstimate:
    """The state of an estimate of the noise over iterations: plain numbers, always finite.

    `sqr` and `var` are each a mean of the iterations' own estimates, and the noise scale is the ratio of the
    means; a mean of ratios would be biased, and have no variance. Older iterations count exponentially less.
    An iteration weighs as much as it says, which is what makes batches of different sizes one series:

    - For `var` its weight is n - 1. With Gaussian gradients the variance of S is 2 tr(Σ²)/(n - 1), under any
      split and for any B.
    - For `sqr` it is B: the variance is 4 GᵀΣG/B + 2 tr(Σ²) n/(n - 1)/B², in which for isotropic noise the
      first term is the larger while B > φ/2. For smaller batches B² would be better: for sizes up to k-fold
      apart by a factor of at most (k + 1)/(2√k) in the error, 1.06 for 2 and 1.74 for 10, as for larger ones
      the other way round. Without weights an epoch's last, small batch would spoil the mean.

    Errors are from the spread of the iterations' own estimates about their mean, whatever its reason, so they
    need no assumption about Σ; iterations are taken to be independent of each other. Where a training begins,
    |G|² may fall a hundredfold within a horizon; so the horizon grows with the number of iterations, of which
    the last ones count most.

    A mean lags behind a truth that drifts: k iterations after a step, a share exp(-k/horizon) of it is left.
    So each quantity has two means, M over the horizon and m over a third of it. With D = m - M, and V the
    variance that D has at a constant truth, D² - V estimates the squared drift between the two without bias.
    By that estimate, M + w D has the smallest mean squared error as an estimate of what m estimates with

        w = max(0, 1 - V/D²),

    a positive-part James-Stein shrinkage of m towards M, as Green and Strawderman (JASA 86, 1991) combine a
    biased and an unbiased estimate. The value is M where the means differ by chance, and near m where they
    differ by more. At a constant truth D is as often positive as negative, which leaves it without bias.

    Its squared error is at most (1 - w) Var(M) + w Var(m) by chance. What it lags is added as one standard
    error: of a linear drift M lags 3/2 D and m 1/2 D, so M + w D lags (3/2 - w) D; and of D², the part w is
    more than chance. Just after a step, no mean can know of it.

    Attributes:
        horizon: Iterations after which one counts 1/e in M. The default is for errors of some percent where φ
            is near B, with about 400 effective observations, and follows training within 200 iterations.

    Raises:
        ValueError: The horizon is too short for iterations to say anything, or not finite; or the share is
            not above 0.
    """

    horizon: float = 200.0
    share: float = 1 / 3  # the horizon is at most this share of the iterations so far, from 10 iterations on
    long: DecayedMeans = DecayedMeans()  # M
    short: DecayedMeans = DecayedMeans()  # m
    # Sums of (n - 1)² and B², each weight decayed once as in M and once as in m.
    common: tuple[float, ...] = (0.0, 0.0)
    observed: int = 0  # iterations that the estimate is from
    last: int = -1  # the last of them, by its number; -1 where numbers were not given
    skipped: int = 0  # iterations that were left out because a norm, or what follows from it, was not finite

    def __post_init__(self) -> None:
        if not _LEAST_OBSERVATIONS <= self.horizon < math.inf:
            raise ValueError(f"horizon {self.horizon}: must be a number from {_LEAST_OBSERVATIONS:g}")
        if not 0 < self.share < math.inf:
            raise ValueError(f"share {self.share}: must be a number above 0")

    def observe(self, norms: GradientNorms) -> "NoiseEstimate":
        """Return the estimate with one more iteration; the same where it has fewer than two contributions."""
        if norms.contributions < 2:
            return self
        freedom, samples = float(norms.contributions - 1), float(norms.samples)
        new = (freedom, freedom * norms.var, samples, samples * norms.sqr)
        keep = math.exp(-1 / min(self.horizon, max(_LEAST_OBSERVATIONS, self.share * self.observed)))
        keep_short = keep**_SHORTER
        long, short = self.long.observe(new, keep), self.short.observe(new, keep_short)
        common = tuple(
            keep * keep_short * old + weight * weight
            for old, weight in zip(self.common, (freedom, samples), strict=True)
        )
        if not (long.is_finite and short.is_finite):
            return replace(self, skipped=self.skipped + 1)
        return replace(self, long=long, short=short, common=common, observed=self.observed + 1)

    def observe_step(self, step: StepNorms | None) -> "NoiseEstimate":
        """Return the estimate with the norms of one more step; the same where there are none.

        A step that is repeated, since its job has gone back, has the same samples and says nothing new.
        """
        if step is None or step.iteration <= self.last:
            return self
        return replace(self.observe(step.norms), last=step.iteration)

    @property
    def noise(self) -> Noise:
        """The noise as far as it is known; all NaN before the first iteration, errors inf for some more."""
        if not self.observed:
            return Noise(math.nan, math.nan, math.inf, math.inf)
        long, short = self.long.noise, self.short.noise
        if math.isinf(short.sqr_error):
            return long
        var_chance, sqr_chance = (
            max(short_squares / short_sum**2 + squares / sum_**2 - 2 * common / (short_sum * sum_), 0.0)
            * short_sum**2
            / short_squares
            for (sum_, squares), (short_sum, short_squares), common in zip(
                self.long.weights, self.short.weights, self.common, strict=True
            )
        )
        var_part, var, var_error = _shifted(long.var, long.var_error, short.var, short.var_error, var_chance)
        sqr_part, sqr, sqr_error = _shifted(long.sqr, long.sqr_error, short.sqr, short.sqr_error, sqr_chance)
        covariance = (
            math.sqrt((1 - var_part) * (1 - sqr_part)) * long.covariance
            + math.sqrt(var_part * sqr_part) * short.covariance
        )
        return Noise(sqr, var, sqr_error, var_error, covariance)


def _shifted(
    long: float, long_error: float, short: float, short_error: float, chance: float
) -> tuple[float, float, float]:
    """Return the weight w of the short mean, M + w D, and its error, of which `NoiseEstimate` has the source.

    Args:
        long: M.
        long_error: Its standard error.
        short: m.
        short_error: Its standard error.
        chance: The variance of D = m - M over that of m, where the truth is constant.
    """
    square = (short - long) ** 2
    by_chance = chance * short_error**2
    part = 1 - by_chance / square if square > by_chance else 0.0
    lag = part * (1 + _LEFT - part) ** 2 * square
    variance = (1 - part) * long_error**2 + part * short_error**2
    return part, long + part * (short - long), math.sqrt(variance + lag)
