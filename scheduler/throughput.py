"""The time of a job's iterations by placement and batch size, and the fit of that model (Pollux, 3.2, 4.1).

Pure functions of numbers. This module knows no jobs, no clusters, and nothing of statistical efficiency.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

_Array: TypeAlias = NDArray[np.float64]

Measurements: TypeAlias = Mapping[tuple[int, int, int], tuple[float, float]]
"""From (nodes, replicas, local batch) to the seconds of a step without accumulation, and of its sync."""

# In seconds, of parameters and of the synchronisation of one replica, so that logarithms exist.
_LEAST = 1e-8
_MOST_OVERLAP = 10.0  # as good as a maximum
_OVERLAP = 6  # the parameter's place in the order of `Throughput`
_OVERLAP_START = 1.5
_GROWTH_START = 0.1  # of synchronisation with each replica
_ROUNDED = 1e-3  # logarithmic error below which the root mean square's kink is rounded, for the line searches
_OVERLAP_COST = 1e-3
_GROWTH_COST = 1e-2
# Of synchronisation within a node, at the least, before any across nodes was seen.
_SLOWER_ACROSS = 1.1


@dataclass(frozen=True, slots=True)
class Throughput:
    """The model of step times, θ of (12). All are above 0 or 0, in seconds but for `overlap`.

    Raises:
        ValueError: A parameter is negative or not finite, or `overlap` is not from 1 to 10.
    """

    gradient_base: float  # of each gradient, in addition to the samples' time (α_grad)
    gradient_per_sample: float  # of each sample of the local batch (β_grad)
    across_base: float  # of synchronisation across nodes (α_sync of nodes)
    across_per_replica: float  # its growth with each replica beyond two (β_sync of nodes)
    within_base: float  # of synchronisation within a node (α_sync, local)
    within_per_replica: float  # its growth with each replica beyond two (β_sync, local)
    # Γ, from 1, where synchronisation follows the gradient, to 10, where it is nearly all hidden.
    overlap: float

    def __post_init__(self) -> None:
        """Check the parameters."""
        for field in fields(self):
            value = getattr(self, field.name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{field.name} {value}: must be finite and at least 0")
        if not 1 <= self.overlap <= _MOST_OVERLAP:
            raise ValueError(f"overlap {self.overlap}: must be from 1 to {_MOST_OVERLAP:.0f}")

    def gradient_seconds(self, local: ArrayLike) -> Any:
        """Return the seconds of a gradient of a local batch, (8); a number or an array, as `local` is."""
        return self.gradient_base + self.gradient_per_sample * np.asarray(local)

    def sync_seconds(self, nodes: ArrayLike, replicas: ArrayLike) -> Any:
        """Return the seconds of synchronisation (9) of replicas on some nodes; arrays are broadcast."""
        nodes, replicas = np.asarray(nodes), np.asarray(replicas)
        beyond = np.maximum(replicas - 2, 0)
        across = self.across_base + self.across_per_replica * beyond
        within = self.within_base + self.within_per_replica * beyond
        return np.where(replicas == 1, 0.0, np.where(nodes == 1, within, across))

    def seconds(
        self, nodes: ArrayLike, replicas: ArrayLike, local: ArrayLike, accumulations: ArrayLike = 0
    ) -> Any:
        """Return the seconds of an iteration, (11).

        Args:
            nodes: Number of nodes that have a replica, at least 1.
            replicas: Number of replicas, at least `nodes`.
            local: Samples of each replica's gradient.
            accumulations: Gradients that each replica computes in addition to the one that is synchronised.

        Returns:
            A number, or an array of the shape to which the arguments are broadcast.
        """
        gradient = self.gradient_seconds(local)
        sync = self.sync_seconds(nodes, replicas)
        return np.asarray(accumulations) * gradient + self.together(gradient, sync)

    def together(self, gradient: ArrayLike, sync: ArrayLike) -> Any:
        """Return the seconds of a gradient and of the synchronisation that it hides in part; broadcast."""
        # With the longer of the two outside of the power, which then neither overflows nor vanishes.
        longer, shorter = np.maximum(gradient, sync), np.minimum(gradient, sync)
        ratio = np.divide(shorter, longer, out=np.zeros_like(longer, dtype=float), where=longer > 0)
        return longer * (1 + ratio**self.overlap) ** (1 / self.overlap)


def fit(measurements: Measurements) -> Throughput:
    """Fit the model to measured steps by the least root mean squared logarithmic error (Pollux, 4.1).

    The errors of gradients' and of whole steps' times count alike. A little is added for γ, which makes the
    rest easier to find when it is near 1, and for synchronisation that grows with replicas. Of what was not
    measured the best is assumed, so that a scheduler tries it: as long as all local batches have one size,
    half of the gradient's time does not depend on it; synchronisation within a node costs nothing before it
    was seen, across nodes no more than a tenth more than within one, and it does not grow before there were
    three replicas.

    Args:
        measurements: At least one; nodes, replicas and local batch are at least 1, replicas at least nodes.

    Raises:
        ValueError: There is no measurement, or one is impossible.
    """
    if not measurements:
        raise ValueError("no measurements: at least one is needed for a fit")
    for key, (step, sync) in measurements.items():
        nodes, replicas, local = key
        if not (1 <= nodes <= replicas and local >= 1):
            raise ValueError(
                f"measurement of (nodes, replicas, local batch) {key}: all must be at least 1, and replicas "
                "at least nodes"
            )
        if not (math.isfinite(step) and 0 <= sync < step):
            raise ValueError(
                f"measurement of {key}: a step of {step} s with {sync} s of synchronisation; the step must "
                "be finite and longer"
            )
    from scipy.optimize import Bounds, minimize  # not there where only workers run

    placed = np.array(list(measurements), dtype=np.float64)  # (measurements, 3)
    timed = np.array(list(measurements.values()), dtype=np.float64)  # (measurements, 2)
    nodes, replicas, local = placed.T
    gradients = timed[:, 0] - timed[:, 1]
    beyond = np.maximum(replicas - 2, 0)
    lower, upper = np.full(7, _LEAST), np.full(7, np.inf)
    lower[_OVERLAP], upper[_OVERLAP] = 1.0, _MOST_OVERLAP
    if (local == local[0]).all():
        lower[0] = upper[0] = gradients.mean() / 2
    if not (nodes > 1).any():
        upper[2:4] = _LEAST
    if not ((nodes == 1) & (replicas > 1)).any():
        upper[4:6] = _LEAST
    if not (replicas > 2).any():
        upper[[3, 5]] = _LEAST

    loss = _Loss(nodes, replicas, local, np.log(gradients), np.log(timed[:, 0]))
    # The search is in units of what was measured, in which the parameters are of like size.
    sync = max(timed[:, 1].mean(), _LEAST)
    growth = _GROWTH_START * sync
    half = gradients.mean() / 2
    start = [half, half / local.mean(), sync, growth, sync, growth, _OVERLAP_START]
    unit = np.array([half, half / local.mean(), *[half, half / max(beyond.mean(), 1.0)] * 2, 1.0])
    free = upper > lower
    found = np.clip(start, lower, upper)

    def of_free(values: _Array) -> tuple[float, _Array]:
        found[free] = values * unit[free]
        value, slope = loss(found)
        return value, (slope * unit)[free]

    bounds = Bounds((lower / unit)[free], (upper / unit)[free], keep_feasible=True)
    options = {"ftol": 1e-9, "gtol": 1e-6}
    solved = minimize(
        of_free, (found / unit)[free], jac=True, method="L-BFGS-B", bounds=bounds, options=options
    )
    found[free] = np.clip(solved.x * unit[free], lower[free], upper[free])
    if not (nodes > 1).any():
        found[2:4] = np.maximum(found[2:4], _SLOWER_ACROSS * found[4:6])
    return Throughput(*found.tolist())


class _Loss:
    """What `fit` minimises, with its gradient, as a function of the parameters in the order of `Throughput`.

    Args:
        nodes: (measurements,).
        replicas: (measurements,).
        local: Samples, (measurements,).
        log_gradients: Logarithms of seconds, (measurements,).
        log_steps: Logarithms of seconds, (measurements,).
    """

    def __init__(
        self, nodes: _Array, replicas: _Array, local: _Array, log_gradients: _Array, log_steps: _Array
    ) -> None:
        self._local = local
        self._log_gradients = log_gradients
        self._log_steps = log_steps
        across, within = nodes > 1, (nodes == 1) & (replicas > 1)
        beyond = np.maximum(replicas - 2, 0)
        # Synchronisation is linear in four parameters: (4, measurements); alone it takes next to nothing.
        self._sync = np.stack([across, across * beyond, within, within * beyond]).astype(np.float64)
        self._alone = np.where(replicas == 1, _LEAST, 0.0)

    def __call__(self, parameters: _Array) -> tuple[float, _Array]:
        """Return the loss and its gradient, (7,)."""
        gamma = float(parameters[_OVERLAP])
        gradients = parameters[0] + parameters[1] * self._local
        syncs = parameters[2:6] @ self._sync + self._alone
        log_gradients, log_syncs = np.log(gradients), np.log(syncs)
        log_powers = np.logaddexp(gamma * log_gradients, gamma * log_syncs)
        log_steps = log_powers / gamma
        share = np.exp(gamma * log_gradients - log_powers)  # of the gradient, in the sum of powers

        of_gradients, by_gradients = _root_mean_square(log_gradients - self._log_gradients)
        of_steps, by_steps = _root_mean_square(log_steps - self._log_steps)
        _, _, a_n, b_n, a_r, b_r, _ = parameters.tolist()
        value = of_gradients + of_steps + _OVERLAP_COST * (gamma - 1) ** 2
        value += _GROWTH_COST * ((b_n / a_n) ** 2 + (b_r / a_r) ** 2)

        slope = np.empty(7)
        by_gradient_seconds = (by_gradients + by_steps * share) / gradients
        slope[0], slope[1] = by_gradient_seconds.sum(), by_gradient_seconds @ self._local
        slope[2:6] = self._sync @ (by_steps * (1 - share) / syncs)
        for base, growth, a, b in ((2, 3, a_n, b_n), (4, 5, a_r, b_r)):
            slope[base] -= 2 * _GROWTH_COST * b * b / a**3
            slope[growth] += 2 * _GROWTH_COST * b / (a * a)
        by_gamma = (share * log_gradients + (1 - share) * log_syncs - log_steps) / gamma
        slope[_OVERLAP] = by_steps @ by_gamma + 2 * _OVERLAP_COST * (gamma - 1)
        return value, slope


def _root_mean_square(errors: _Array) -> tuple[float, _Array]:
    """Return the root of the mean square, its kink at 0 rounded, and its derivatives by the errors."""
    root = math.sqrt(float(errors @ errors) / len(errors) + _ROUNDED**2)
    return root, errors / (len(errors) * root)
