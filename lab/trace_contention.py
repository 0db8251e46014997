"""Make a trace of contention that comes and goes abruptly, in the middle of iterations.

Example:
  evenpace lab trace contention --workers 4 --out trace.csv
"""

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from rich.console import Console

from idl.settings import Setting
from lab.traces import FASTEST, SLOWEST, MadeTraceConfig, Series, Trace, write_made

_MEMORY = 0.4  # share of the memory in use
_SLOWDOWN = 0.5  # share of its speed that a worker has left under contention
_SHORTEST, _LONGEST = 20, 60  # iterations of a period
_USAGE_NOISE = 0.02  # standard deviation of the measured usage


@dataclass(frozen=True, kw_only=True)
class ContentionTraceConfig(MadeTraceConfig):
    """Workers and their competitors."""

    workers: Annotated[int, Setting("Number of workers.", least=1)] = 4


def run(config: ContentionTraceConfig, console: Console) -> dict[str, int]:
    """Make the trace, and write it (OSError: the file cannot be written)."""
    return write_made(contention_trace(config), config.out, console)


def contention_trace(config: ContentionTraceConfig | None = None) -> Trace:
    """Make a trace of workers with which others compete for the CPU, on and off.

    Each period of contention, and each one without, ends in the middle of an iteration, which is drawn
    evenly from `_SHORTEST` to `_LONGEST` after the period's beginning; so is the share of that
    iteration's samples that is processed before. Usage is measured as the iteration begins: a coming flip
    does not show. `expected` is that of a predictor that knows the usage, the period's age and how periods
    are drawn, but not when this one ends.
    """
    config = config or ContentionTraceConfig()
    iterations = config.iterations
    mixed = math.log(_SLOWDOWN) / (1 - 1 / _SLOWDOWN)  # mean of 1 / (u + (1 - u) / slowdown), u from 0 to 1
    trace = {}
    for i in range(config.workers):
        random = np.random.default_rng([config.seed, i])
        idle_speed = random.uniform(SLOWEST, FASTEST)
        lengths = random.integers(_SHORTEST, _LONGEST, iterations // _SHORTEST + 1, endpoint=True)
        period = np.repeat(np.arange(len(lengths)), lengths)[:iterations]  # (iterations,)
        age = (np.arange(lengths.sum()) - np.repeat(lengths.cumsum() - lengths, lengths) + 1)[:iterations]
        contended = (period + random.integers(2)) % 2 == 1
        share = np.where(contended, _SLOWDOWN, 1.0)
        other = np.where(contended, 1.0, _SLOWDOWN)
        before = random.random(iterations)  # share of the samples processed before a flip
        flips = age == lengths[period]
        actual = np.where(flips, 1 / (before / share + (1 - before) / other), share)
        hazard = np.where(age < _SHORTEST, 0.0, 1 / (_LONGEST + 1 - age))
        trace[f"worker-{i}"] = Series(
            np.arange(iterations),
            idle_speed * actual * config.perturbation.draw(iterations, random),
            np.clip(1 - share + _USAGE_NOISE * random.standard_normal(iterations), 0.0, 1.0),
            np.clip(_MEMORY + _USAGE_NOISE * random.standard_normal(iterations), 0.0, 1.0),
            idle_speed * ((1 - hazard) * share + hazard * mixed) * config.perturbation.mean,
        )
    return trace
