"""Records of iterations whose gradients are drawn, so that the true gradient noise is known."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from idl.gradient_norms import GradientNorms, StepNorms
from idl.records import IterationRecord

_DIMENSIONS = 500
VAR = 5.0  # trace of the covariance of one sample's gradient


def drawn_norms(iteration: int, counts: Sequence[int], scale: float) -> StepNorms:
    """Return the norms of a step with gradients that are drawn; the same for the same arguments.

    Args:
        iteration: The iteration, which is also the seed.
        counts: Samples of each contribution, above 0.
        scale: The true noise scale in samples; the variance of one sample's gradient is `VAR`.
    """
    rng = np.random.default_rng(iteration)
    sizes = np.asarray(counts)
    noise = rng.normal(size=(len(sizes), _DIMENSIONS)) * math.sqrt(VAR / _DIMENSIONS)
    gradients = math.sqrt(VAR / scale / _DIMENSIONS) + noise / np.sqrt(sizes)[:, None]
    whole = sizes @ gradients / sizes.sum()
    parts = zip(sizes.tolist(), np.sum(gradients**2, axis=1).tolist(), strict=True)
    return StepNorms(iteration, GradientNorms.of(parts, float(whole @ whole)))


def with_norms(records: Sequence[IterationRecord], scale: float) -> list[IterationRecord]:
    """Add norms to records, a contribution for each worker with samples; `scale` is the true noise scale."""
    return [
        replace(
            record, norms=drawn_norms(record.iteration, record.batch_sizes[record.batch_sizes > 0], scale)
        )
        for record in records
    ]
