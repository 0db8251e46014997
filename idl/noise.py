"""The noise of gradients: its value, one iteration's statistics of it, and its estimate over iterations.

Pure values of a few numbers; nothing here knows gradients, workers, shards or the wire.

Contribution i to an iteration is the mean gradient g_i of b_i samples: a worker's, or a micro-batch's. Their
weighted sum is g = Σ b_i g_i / B with B = Σ b_i, the mean gradient of the whole batch. With the true gradient
G and the covariance Σ of one sample's gradient, E|g_i|² = |G|² + tr(Σ)/b_i, and E|g|² = |G|² + tr(Σ)/B
(McCandlish et al., An Empirical Model of Large-Batch Training, appendix A.1). So the n squared norms give
|G|² and tr(Σ) by a one-way analysis of variance, whose estimates have the smallest variance under any split.
"""

import functools
import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement

_ERRORS = 2.0  # standard errors on each side of an interval: about 95%
_FACTOR = 4.0  # between the ends of the noise scale's interval, at most, for it to be known
_LEAST_OBSERVATIONS = 10.0  # fewer say too little about their own spread


@dataclass(frozen=True, slots=True)
class Noise:
    """The gradient noise: the true gradient's squared norm, one sample's variance, and their errors.

    Estimates are unbiased, and so may be zero or negative where there is little to see.

    Attributes:
        sqr: |G|², the squared norm of the true gradient.
        var: tr(Σ), the trace of the covariance of one sample's gradient.
        sqr_error: Standard error of `sqr`; 0 for a value that is exact, inf where nothing is known of it.
        var_error: Standard error of `var`, likewise.
        covariance: Covariance of the errors of the two.
    """

    sqr: float
    var: float
    sqr_error: float = 0.0
    var_error: float = 0.0
    covariance: float = 0.0

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
    def known(self) -> bool:
        """Whether the noise scale is known to about a factor of two each way, by two standard errors."""
        low, high = self.interval()
        return high <= _FACTOR * low or high == 0

    @property
    def known_scale(self) -> float | None:
        """The noise scale, in samples, where it is `known` and finite; else None."""
        return self.scale if self.known and math.isfinite(self.scale) else None

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
        return _efficiency(self.scale, batch, baseline)

    def efficiency_interval(
        self, batch: float, baseline: float, errors: float = _ERRORS
    ) -> tuple[float, float]:
        """Return the least and the greatest efficiency that the estimates allow; arguments as above.

        Raises:
            ValueError: A size is not above 0.
        """
        _check_above_zero("batch", batch)
        _check_above_zero("baseline", baseline)
        ends = [_efficiency(scale, batch, baseline) for scale in self.interval(errors)]
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


@dataclass(frozen=True, slots=True)
class GradientNorms:
    """The squared norms of an iteration's gradients, or of a part of their elements.

    They are sums over the gradients' elements. So shards that hold a part each give their own, and the sum of
    these (`+`) is the whole's.

    Attributes:
        contributions: n, the number of contributions with samples.
        samples: B, their samples.
        weighted: Σ b_i |g_i|². Not finite where a gradient is not.
        squared: |g|², of the weighted sum. Likewise.

    Raises:
        ValueError: A number is negative, or there are more contributions than samples.
    """

    contributions: int
    samples: int
    weighted: float
    squared: float

    def __post_init__(self) -> None:
        if not max(0, min(self.samples, 1)) <= self.contributions <= self.samples:
            raise ValueError(
                f"contributions {self.contributions}: must be from 1 to samples, {self.samples}, or both be 0"
            )
        for name in ("weighted", "squared"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} {getattr(self, name)}: must be at least 0")

    @classmethod
    def of(cls, contributions: Iterable[tuple[int, float]], squared: float) -> "GradientNorms":
        """Return the norms of an iteration; contributions without samples do not count.

        Args:
            contributions: Samples b_i and squared norm |g_i|² of each.
            squared: |g|², of the weighted sum.

        Raises:
            ValueError: A number is negative.
        """
        counted = [(count, norm) for count, norm in contributions if count]
        for count, norm in counted:
            if count < 0 or norm < 0:
                raise ValueError(f"contribution of {count} samples, norm {norm}: must be at least 0")
        weighted = float(sum(count * norm for count, norm in counted))
        return cls(len(counted), sum(count for count, _ in counted), weighted, float(squared))

    @classmethod
    def of_consecutive(
        cls, first: tuple[int, float], second: tuple[int, float], difference: float
    ) -> "GradientNorms":
        """Return the norms that the gradients of two successive iterations give where each has only one.

        This is the differenced estimator of Pollux, section 3.1. What the true gradient changes in between
        counts as noise. Each gradient should be in one pair alone: pairs that share one are correlated, and
        standard errors up to 1.4 times too small.

        Args:
            first: Samples and squared norm of the first gradient, which is a mean over its samples.
            second: Those of the second.
            difference: Squared norm of the gradients' difference.

        Raises:
            ValueError: A number is negative.
        """
        if difference < 0:
            raise ValueError(f"difference {difference}: must be at least 0")
        whole = cls.of((first, second), 0.0)
        if whole.contributions < 2:
            return replace(whole, squared=whole.weighted / max(whole.samples, 1))
        between = first[0] * second[0] / whole.samples * difference  # Σ b_i |g_i - g|²
        # Rounding may make it negative where the gradients are opposite; NaN stays.
        squared = (whole.weighted - between) / whole.samples
        return replace(whole, squared=0.0 if squared < 0 else squared)

    @property
    def is_finite(self) -> bool:
        """True if both norms are numbers that the wire may carry."""
        return math.isfinite(self.weighted) and math.isfinite(self.squared)

    def and_contributions(self, other: "GradientNorms") -> "GradientNorms":
        """Return the norms with another part of the contributions to the same weighted sum.

        The sum's own norm is the same in both, but for rounding.
        """
        return replace(
            self,
            contributions=self.contributions + other.contributions,
            samples=self.samples + other.samples,
            weighted=self.weighted + other.weighted,
        )

    def __add__(self, other: "GradientNorms") -> "GradientNorms":
        """Return the norms over both parts of the elements, of the same contributions.

        Raises:
            ValueError: The other part has another number of contributions or samples.
        """
        for name in ("contributions", "samples"):
            mine, others = getattr(self, name), getattr(other, name)
            if mine != others:
                raise ValueError(f"{name} {others}: must be those of the other part, {mine}")
        return replace(self, weighted=self.weighted + other.weighted, squared=self.squared + other.squared)

    @property
    def var(self) -> float:
        """The iteration's own estimate of tr(Σ), S = (Σ b_i|g_i|² - B|g|²)/(n - 1); NaN where n < 2."""
        if self.contributions < 2:
            return math.nan
        return (self.weighted - self.samples * self.squared) / (self.contributions - 1)

    @property
    def sqr(self) -> float:
        """The iteration's own estimate of |G|², |g|² - S/B; NaN where n < 2."""
        return self.squared - self.var / self.samples if self.contributions > 1 else math.nan


@dataclass(frozen=True, slots=True)
class StepNorms:
    """The norms of the gradients that a step was taken with: that of an iteration, by its number."""

    iteration: int
    norms: GradientNorms

    @classmethod
    def summed(cls, parts: Sequence["StepNorms | None"]) -> "StepNorms | None":
        """Return the norms over all elements, of which shards have a part each.

        Returns:
            None unless all know those of the same contributions to the same step.
        """
        known = [part for part in parts if part is not None]
        if len({(p.iteration, p.norms.contributions, p.norms.samples) for p in known}) != 1:
            return None
        if len(known) < len(parts):
            return None
        return cls(known[0].iteration, functools.reduce(operator.add, (part.norms for part in known)))

    @classmethod
    def joined(cls, iteration: int, total: int, told: Iterable["StepNorms | None"]) -> "StepNorms | None":
        """Return the norms of an iteration's whole step from those that its workers tell.

        Each worker tells those of all contributions, as shards know them, or of its own alone; a worker that
        is the only one may tell those of two iterations.

        Args:
            iteration: The iteration.
            total: Samples of its batch.
            told: What each worker told, of any iteration.

        Returns:
            None unless they are of the whole batch.
        """
        parts = [one.norms for one in told if one is not None and one.iteration == iteration]
        for part in parts:
            if part.samples >= total:
                return cls(iteration, part)
        if not parts or sum(part.samples for part in parts) != total:
            return None
        return cls(iteration, functools.reduce(GradientNorms.and_contributions, parts))


_PAIRS = tuple(combinations_with_replacement(range(4), 2))


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
    need no assumption about Σ; iterations are taken to be independent of each other. After a change of the
    truth, a share exp(-k/horizon) of the difference is left k iterations later: a step is followed to 10% of
    its height in 2.3 horizons. Where a training begins, |G|² may fall a hundredfold within a horizon; so the
    horizon grows with the number of iterations, of which the last ones count most.

    Attributes:
        horizon: Iterations after which one counts 1/e. The default is for errors of some percent where φ is
            near B, with about 400 effective observations, and follows training in a few hundred iterations.
        share: The horizon is at most this share of the iterations so far, from 10 iterations on.
        sums: Decayed sums of (n - 1, (n - 1) S, B, B G).
        products: Decayed sums of the products of each two of these.
        observed: Iterations that the estimate is from.
        last: The last of them, by its number; -1 where numbers were not given.
        skipped: Iterations that were left out because a norm, or what follows from it, was not finite.

    Raises:
        ValueError: The horizon is too short for iterations to say anything, or not finite; or the share is
            not above 0.
    """

    horizon: float = 200.0
    share: float = 1 / 3
    sums: tuple[float, ...] = (0.0,) * 4
    products: tuple[float, ...] = (0.0,) * len(_PAIRS)
    observed: int = 0
    last: int = -1
    skipped: int = 0

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
        sums = tuple(keep * old + one for old, one in zip(self.sums, new, strict=True))
        products = tuple(
            keep * keep * old + new[i] * new[j] for old, (i, j) in zip(self.products, _PAIRS, strict=True)
        )
        if not all(map(math.isfinite, sums + products)):
            return replace(self, skipped=self.skipped + 1)
        return replace(self, sums=sums, products=products, observed=self.observed + 1)

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


def _efficiency(scale: float, batch: float, baseline: float) -> float:
    return 1.0 if math.isinf(scale) else (scale + baseline) / (scale + batch)


def _check_above_zero(name: str, value: float) -> None:
    if not value > 0:
        raise ValueError(f"{name} {value}: must be above 0")
