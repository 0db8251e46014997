"""Values of the contract that cannot be: the error names the value, and what is allowed."""

import math

import pytest

from idl.gradient_norms import GradientNorms
from idl.noise import Noise
from idl.noise_estimate import NoiseEstimate
from idl.plan import JobSpec

NORMS = GradientNorms(3, 10, 3.0, 1.0)
NOISE = Noise(2.0, 64.0)
OTHERS = ": must be those of the other part"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: NORMS + GradientNorms(2, 10, 3.0, 1.0), "contributions 2" + OTHERS),
        (lambda: NORMS + GradientNorms(3, 9, 3.0, 1.0), "samples 9" + OTHERS),
        (lambda: GradientNorms(3, 2, 1.0, 1.0), "contributions 3: must be from 1 to samples, 2"),
        (lambda: GradientNorms(0, 2, 1.0, 1.0), "contributions 0: must be from 1 to samples, 2"),
        (lambda: GradientNorms(-1, -1, 0.0, 0.0), "contributions -1: must be"),
        (lambda: GradientNorms(2, 8, -1.0, 1.0), "weighted -1.0: must be at least 0"),
        (lambda: GradientNorms(2, 8, 1.0, -2.0), "squared -2.0: must be at least 0"),
        (
            lambda: GradientNorms.of([(8, 1.0), (-3, 1.0)], 1.0),
            "contribution of -3 samples, norm 1.0: must be at least 0",
        ),
        (lambda: JobSpec(0, 1), "dataset_size 0"),
        (lambda: JobSpec(2**48, 1), f"dataset_size {2**48}"),
        (lambda: JobSpec(10, 0), "total_batch_size 0"),
        (lambda: JobSpec(10, 11), "total_batch_size 11.*10"),
        (lambda: JobSpec(10, 1, seed=-1), "seed -1"),
        (lambda: JobSpec(10, 1, seed=2**63), f"seed {2**63}"),
        *(
            (lambda call=call, sizes=sizes: call(*sizes), f"{name} {size}: must be above 0")
            for size in (0, -1.0, math.nan)
            for call, name, sizes in (
                (NOISE.efficiency, "batch", (size, 32)),
                (NOISE.efficiency, "baseline", (32, size)),
                (NOISE.efficiency_interval, "batch", (size, 32)),
                (NOISE.efficiency_interval, "baseline", (32, size)),
                (NOISE.similarity, "batch", (size,)),
            )
        ),
        *(
            (lambda horizon=horizon: NoiseEstimate(horizon), "horizon .*: must be a number from 10")
            for horizon in (9.0, 0.0, -1.0, math.inf, math.nan)
        ),
    ],
)
def test_a_value_that_cannot_be_is_named(make, said):
    """Wherever it is given."""
    with pytest.raises(ValueError, match=said):
        make()
