"""Records of iterations whose gradients are drawn, so that the true gradient noise is known."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from idl.noise import GradientNorms, StepNorms
from idl.records import IterationRecord

_DIMENSIONS = 500
_VAR = 5.0  # trace of the covariance of one sample's gradient


def with_norms(records: Sequence[IterationRecord], scale: float, seed: int = 5) -> list[IterationRecord]:
    """Add norms to records, one contribution for each worker's part.

    Args:
        records: The iterations.
        scale: The true noise scale in samples.
        seed: Seed of the gradients.
    """
    rng = np.random.default_rng(seed)
    true = np.full(_DIMENSIONS, math.sqrt(_VAR / scale / _DIMENSIONS))
    made = []
    for record in records:
        counts = record.batch_sizes[record.batch_sizes > 0]
        noise = rng.normal(size=(len(counts), _DIMENSIONS)) * math.sqrt(_VAR / _DIMENSIONS)
        gradients = true + noise / np.sqrt(counts)[:, None]
        whole = counts @ gradients / counts.sum()
        parts = zip(counts.tolist(), np.sum(gradients**2, axis=1).tolist(), strict=True)
        norms = GradientNorms.of(parts, float(whole @ whole))
        made.append(replace(record, norms=StepNorms(record.iteration, norms)))
    return made
