"""Goodput: throughput by a model of step times, times efficiency by the gradient noise (Pollux, section 3).

Pure functions of numbers. This module knows no jobs, no clusters, and nothing of how its models were fitted.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from idl import measures
from idl.noise import Noise, statistical_efficiency
from scheduler.throughput import Throughput

_CANDIDATES = 50  # totals, in geometric sequence
_TOLERANCE = 1e-8  # by which a share may exceed a whole number by rounding error alone


@dataclass(frozen=True, slots=True)
class Limits:
    """The batches that a job's training allows.

    Raises:
        ValueError: A number is below 1, or a least one above its largest.
    """

    initial: int  # samples of the least whole batch, M₀, whose efficiency is 1
    largest: int  # samples of the largest whole batch
    least_local: int  # samples of the least batch of one gradient
    most_local: int  # samples of the largest batch of one gradient

    def __post_init__(self) -> None:
        """Check the order."""
        if not 1 <= self.initial <= self.largest:
            raise ValueError(
                f"whole batches from {self.initial} to {self.largest}: must rise from at least 1"
            )
        if not 1 <= self.least_local <= self.most_local:
            raise ValueError(
                f"local batches from {self.least_local} to {self.most_local}: must rise from at least 1"
            )

    def share(self, total: ArrayLike, replicas: ArrayLike) -> tuple[Any, Any]:
        """Return the local batch and the number of accumulations with which replicas reach a whole batch.

        The local batch is rounded up, but not so far that the whole exceeds the largest; it may be below
        `least_local` where there are many replicas. One replica accumulates at least once for more than the
        initial batch, since the gradient noise is estimated from several gradients.

        Args:
            total: Samples of the whole batch, at least 1; it is broadcast with `replicas`.
            replicas: Number of replicas, at least 1.

        Returns:
            Two integers, or arrays of them.
        """
        replicas = np.asarray(replicas)
        share = np.asarray(total) / replicas
        gradients = np.ceil(share / self.most_local - _TOLERANCE)
        gradients = np.maximum(gradients, np.where((replicas == 1) & (share > self.initial), 2.0, 1.0))
        local = np.minimum(np.ceil(share / gradients - _TOLERANCE), self.largest // (replicas * gradients))
        return local.astype(np.int64), gradients.astype(np.int64) - 1


class Best(NamedTuple):
    """The best configurations of placements; each a number, or an array with one value for each placement.

    Attributes:
        goodput: Samples per second, each counted relative to one in the initial batch; 0 where the limits
            allow no configuration.
    """

    goodput: Any
    local: Any  # samples of each replica's gradient
    accumulations: Any  # gradients that each replica computes in addition to the one that is synchronised


@dataclass(frozen=True, slots=True)
class Goodput:
    """What a job's training gains on devices of one kind.

    Raises:
        ValueError: The noise scale is NaN, or `total` is not from 1 to the largest batch.
    """

    throughput: Throughput  # the model of step times
    noise: Noise  # the gradient noise
    limits: Limits  # the batches that are allowed
    total: int | None = None  # samples of the whole batch where it is fixed; None where it is chosen

    def __post_init__(self) -> None:
        """Check the noise and the fixed batch."""
        if math.isnan(self.noise.scale):
            raise ValueError(f"{self.noise} has no noise scale: `sqr` or `var` must be above 0")
        if self.total is not None and not 1 <= self.total <= self.limits.largest:
            raise ValueError(
                f"a whole batch of {self.total} samples: must be from 1 to {self.limits.largest}"
            )

    @property
    def most_replicas(self) -> int:
        """The most replicas that have at least the least local batch each."""
        return max(1, (self.total or self.limits.largest) // self.limits.least_local)

    def __call__(
        self, nodes: ArrayLike, replicas: ArrayLike, local: ArrayLike, accumulations: ArrayLike = 0
    ) -> Any:
        """Return the goodput (4), in samples of the initial batch's worth per second; arrays are broadcast.

        Args:
            local: Samples of each replica's gradient.
            accumulations: Gradients that each replica computes in addition to the one that is synchronised.
        """
        total = np.asarray(replicas) * local * (np.asarray(accumulations) + 1)
        seconds = self.throughput.seconds(nodes, replicas, local, accumulations)
        return measures.goodput(
            total, seconds, statistical_efficiency(self.noise.scale, total, self.limits.initial)
        )

    def best(self, nodes: ArrayLike, replicas: ArrayLike) -> Best:
        """Return the best configuration of each placement (13), among 50 whole batches in geometric sequence.

        Args:
            nodes: Number of nodes that have a replica, at least 1; it is broadcast with `replicas`.
            replicas: Number of replicas, at least `nodes`.

        Raises:
            ValueError: A placement has no node, or more nodes than replicas.
        """
        nodes, replicas = np.broadcast_arrays(nodes, replicas)
        if not ((nodes >= 1) & (nodes <= replicas)).all():
            raise ValueError(f"{replicas} replicas on {nodes} nodes: there must be at least one on each node")
        local, accumulations = self.limits.share(self._totals(replicas), replicas)  # (totals, ...) each
        goodputs = self(nodes, replicas, np.maximum(local, 1), accumulations)
        allowed = (local >= self.limits.least_local) & (local <= self.limits.most_local)
        goodputs = np.where(allowed, goodputs, 0.0)
        best = goodputs.argmax(axis=0, keepdims=True)
        return Best(*(np.take_along_axis(x, best, 0)[0] for x in (goodputs, local, accumulations)))

    def _totals(self, replicas: Any) -> Any:
        """Return the whole batches to try, (totals, ...), where `replicas` is (...)."""
        if self.total is not None:
            return np.full((1, *replicas.shape), self.total)
        largest = self.limits.largest
        least = np.clip(self.limits.least_local * replicas, self.limits.initial, largest)
        steps = np.linspace(0, 1, _CANDIDATES).reshape(-1, *(1 for _ in replicas.shape))
        totals = least * (largest / least) ** steps
        totals[-1] = largest  # without the rounding error, which would be a sample more
        return totals
