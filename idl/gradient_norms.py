"""The squared norms of one iteration's gradients, which say what the noise of gradients is.

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


@dataclass(frozen=True, slots=True)
class GradientNorms:
    """The squared norms of an iteration's gradients, or of a part of their elements.

    They are sums over the gradients' elements. So shards that hold a part each give their own, and the sum of
    these (`+`) is the whole's.

    Raises:
        ValueError: A number is negative, or there are more contributions than samples.
    """

    contributions: int  # n, the number of contributions with samples
    samples: int  # b, their samples
    # Σ b_i |g_i|². Not finite where a gradient is not.
    weighted: float
    # |g|², of the weighted sum. Likewise.
    squared: float
    # Σ n_i, where g_i is a mean over n_i tokens or the like: b_i is then the part n_i / Σ n_i of `samples`,
    # since noise goes with the tokens. None: by samples, or of all contributions to the sum.
    weight: float | None = None

    def __post_init__(self) -> None:
        least = 0 if self.weight is not None else max(0, min(self.samples, 1))
        if not least <= self.contributions <= self.samples:
            raise ValueError(
                f"contributions {self.contributions}: must be from 1 to samples, {self.samples}, or both be 0"
            )
        for name in ("weighted", "squared"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} {getattr(self, name)}: must be at least 0")

    @classmethod
    def of(
        cls,
        contributions: Iterable[tuple[int, float]],
        squared: float,
        weights: Iterable[float] | None = None,
    ) -> "GradientNorms":
        """Return the norms of an iteration; contributions without samples do not count.

        Args:
            contributions: Samples b_i and squared norm |g_i|² of each.
            squared: |g|², of the weighted sum.
            weights: What the gradient of each with samples is a mean over, n_i, where that is not samples;
                with 0, its norm may be anything.

        Raises:
            ValueError: A number is negative.
        """
        counted = [(count, norm) for count, norm in contributions if count]
        for count, norm in counted:
            if count < 0 or norm < 0:
                raise ValueError(f"contribution of {count} samples, norm {norm}: must be at least 0")
        samples = sum(count for count, _ in counted)
        if weights is None:
            weighted = float(sum(count * norm for count, norm in counted))
            return cls(len(counted), samples, weighted, float(squared))
        norms = [(weight, norm) for (_, norm), weight in zip(counted, weights, strict=True) if weight]
        whole = float(sum(weight for weight, _ in norms))
        weighted = float(sum(weight * norm for weight, norm in norms)) * samples / (whole or 1.0)
        return cls(len(norms), samples, weighted, float(squared), whole)

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
        contributions, samples = self.contributions + other.contributions, self.samples + other.samples
        if self.weight is None or other.weight is None:
            return replace(
                self,
                contributions=contributions,
                samples=samples,
                weighted=self.weighted + other.weighted,
                weight=None,
            )
        weight = self.weight + other.weight
        by_weight = sum(
            one.weighted * (one.weight or 0.0) / one.samples for one in (self, other) if one.samples
        )
        return GradientNorms(
            contributions, samples, by_weight * samples / (weight or 1.0), self.squared, weight
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
        whole = next((part for part in parts if part.samples >= total), None)
        if whole is None:
            if not parts or sum(part.samples for part in parts) != total:
                return None
            whole = functools.reduce(GradientNorms.and_contributions, parts)
        return cls(iteration, replace(whole, weight=None)) if whole.contributions else None
