"""Figures of a job's gradient noise, from its estimate alone."""

import math
from typing import Any

from evenpace.overview import phrases
from evenpace.overview.phrases import Estimate, number
from idl.measures import work_of_batch
from idl.noise_estimate import NoiseEstimate


def noise_figures(estimate: NoiseEstimate, batch: int, iterations: int) -> dict[str, Any]:
    """Return the attributes of `JobFigures` that are of the gradient noise, by name.

    Args:
        estimate: The noise as far as it is known.
        batch: Samples of the whole batch at present; 0 where there is none.
        iterations: Number of complete iterations.
    """
    noise = estimate.noise
    least, most = noise.interval() if estimate.observed else (math.nan, math.nan)
    if estimate.observed and batch:
        twice, half = (Estimate(*work_of_batch(noise, batch, factor)) for factor in (2.0, 0.5))
    else:
        twice = half = Estimate(math.nan, math.nan, math.nan)
    if noise.is_known and batch:
        text = phrases.work_of_other_batches(twice, half)
    else:
        text = phrases.unknown_noise(iterations, estimate.observed, Estimate(least, noise.scale, most))
    return {
        "noise_scale": number(noise.scale),
        "noise_scale_least": number(least),
        "noise_scale_most": number(most),
        "noise_known": noise.is_known,
        "noise_sqr": number(noise.sqr),
        "noise_var": number(noise.var),
        "noise_iterations": estimate.observed,
        "work_of_twice": number(twice.likely),
        "work_of_twice_least": number(twice.least),
        "work_of_twice_most": number(twice.most),
        "noise_text": text,
    }
