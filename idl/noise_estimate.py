"""The estimate of the gradient noise over iterations, from the norms of each one's gradients.

A pure value of a few numbers; nothing here knows gradients, workers, shards or the wire.
"""

import math
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement

from idl.gradient_norms import GradientNorms, StepNorms
from idl.noise import Noise

_LEAST_OBSERVATIONS = 10.0  # fewer say too little about their own spread
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
