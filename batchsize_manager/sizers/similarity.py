"""Sizes by JABAS's threshold for the similarity of the gradients of a batch's two halves.

Its expectation is 1 / (1 + 2φ/B), with the noise scale φ and the batch size B (`Noise.similarity`). So the
estimate of the noise serves in place of two groups of workers, and the rule has a closed form.
"""

import math

from batchsize_manager.sizers.base import Choice, Situation, Sizer

_RATE = 0.1
_INTERVAL = 100  # iterations


class SimilaritySteps(Sizer):
    """A sizer that follows JABAS (section 6.1, after SimiGrad) as published.

    Every 100 iterations the batch grows by a tenth while the similarity is under the threshold, and shrinks
    by a tenth while it is not.

    Args:
        threshold: γ, above 0 and below 1.
    """

    every = _INTERVAL

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold

    def choose(self, at: Situation) -> Choice | None:
        """Return a size one step up or down; None before the noise scale has any bound."""
        similarity = at.noise.similarity(at.size)
        if at.noise.interval() == (0.0, math.inf) or math.isnan(similarity):
            return None
        if similarity < self._threshold:
            size = max(at.rounded(at.size * (1 + _RATE)), min(at.size + at.step, at.most))
        else:
            size = min(at.rounded(at.size * (1 - _RATE)), max(at.size - at.step, at.least))
        side = "under" if similarity < self._threshold else "not under"
        return Choice(size, f"the similarity, {similarity:.3g}, is {side} {self._threshold:g}")


class Similarity(Sizer):
    """A sizer that goes to the size whose similarity is the threshold, at once: B* = 2γφ/(1 - γ).

    Where φ is only known to lie in an interval, so does B*; a size within it stays.

    Args:
        threshold: γ, above 0 and below 1.
        promise: Change by at least this share of the present size.
    """

    every = 10

    def __init__(self, threshold: float, promise: float) -> None:
        self._threshold = threshold
        self._promise = promise

    def choose(self, at: Situation) -> Choice | None:
        """Return B* where the present size is outside of its interval; None before φ has any bound."""
        factor = 2 * self._threshold / (1 - self._threshold)
        low, high = at.noise.interval()
        if (low, high) == (0.0, math.inf) or math.isnan(at.noise.scale):
            return None
        said = f"the similarity is {self._threshold:g} between {factor * low:,.0f} and {factor * high:,.0f}"
        if factor * low <= at.size <= factor * high:
            return Choice(at.size, said)
        size = at.rounded(min(max(factor * at.noise.scale, at.size / 2), at.size * 2))
        return Choice(size if abs(size - at.size) >= self._promise * at.size else at.size, said)
