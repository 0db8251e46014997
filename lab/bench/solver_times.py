"""Time how long it takes to split a batch, by the kind of devices' time curves.

All devices are different, which is the worst case: times of equal devices are computed once. The largest case
of JABAS has 2,592 micro-batches, which take its own solver 27.58 s for all local batch sizes (section 7.6).

Example:
  evenpace lab bench solver --devices 64 --micro-batches 2592
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import numpy as np
from rich.console import Console

from batchsize_manager.policies.curves import Curves, EqualTime, fit
from batchsize_manager.policies.curves_in_waves import Alone, CurvesInWaves
from batchsize_manager.policies.solver import TimeCurves, split_evenly_in_time
from batchsize_manager.policies.step_times import StepTimeCurves, StepTimes
from batchsize_manager.policies.waves import WaveCurves, Waves
from evenpace.local.terminal import make_table
from idl.bounds import Bounds
from idl.settings import Checked, Setting

_AT_ONCE = 16  # most micro-batches at once
_SIZES = tuple(2**power for power in range(8))  # micro-batches, measured of each device


@dataclass(frozen=True)
class SolverConfig(Checked):
    """What is split, and how often (InvalidRequestError: a value is out of its range)."""

    devices: Annotated[int, Setting("All different.", least=1)] = 64
    micro_batches: Annotated[int, Setting("Of the whole batch.", least=1)] = 2592
    repeats: Annotated[int, Setting("Splits of each kind, each over other devices.", least=1)] = 20


def run(config: SolverConfig, console: Console) -> dict[str, Any]:
    """Measure, and print and return the seconds by kind: `{"seconds": {curves: {"median", "max"}}}`."""
    devices, micro_batches, repeats = config.devices, config.micro_batches, config.repeats
    table = make_table(
        f"{micro_batches} micro-batches over {devices} devices, {repeats} times",
        "curves",
        "median ms",
        "max ms",
    )
    figures: dict[str, Any] = {**asdict(config), "seconds": {}}
    bounds = [Bounds()] * devices
    for name, make in _CURVES.items():
        seconds = []
        for seed in range(repeats):
            curves_of = make(np.random.default_rng(seed), devices)
            began = time.perf_counter()
            split_evenly_in_time(curves_of(), micro_batches, bounds)
            seconds.append(time.perf_counter() - began)
        median, longest = statistics.median(seconds), max(seconds)
        figures["seconds"][name] = {"median": median, "max": longest}
        table.add_row(name, f"{median * 1e3:.2f}", f"{longest * 1e3:.2f}")
    console.print(table)
    return figures


def _waves(random: np.random.Generator, devices: int) -> Callable[[], TimeCurves]:
    """Return a maker of waves of up to 16 at once, none of a size for nothing."""
    seconds = np.cumsum(random.uniform(0.01, 0.1, (devices, _AT_ONCE)), axis=1).tolist()
    return lambda: WaveCurves([Waves(tuple(row)) for row in seconds])


def _flat_waves(random: np.random.Generator, devices: int) -> Callable[[], TimeCurves]:
    """Return a maker of waves that take equally long however many run at once: the longest stairs."""
    seconds = random.uniform(0.01, 0.1, devices).tolist()
    return lambda: WaveCurves([Waves((second,) * _AT_ONCE) for second in seconds])


def _measured(random: np.random.Generator, devices: int) -> Callable[[], TimeCurves]:
    """Return a maker of curves between measured step times, as of profiles."""
    seconds = np.cumsum(random.uniform(0.01, 0.1, (devices, len(_SIZES))), axis=1).tolist()
    return lambda: StepTimeCurves([StepTimes(_SIZES, tuple(row)) for row in seconds])


def _learned(random: np.random.Generator, devices: int) -> Callable[[], TimeCurves]:
    """Return a maker of curves fitted to measured times, as of the policy `learned`."""
    curves = _fitted(random, devices)
    return lambda: EqualTime(curves)


def _learned_waves(random: np.random.Generator, devices: int) -> Callable[[], TimeCurves]:
    """Return a maker of the same curves for samples in waves of up to 16 micro-batches at once."""
    curves = _fitted(random, devices)
    seconds = np.cumsum(random.uniform(0.1, 1, (devices, _AT_ONCE)), axis=1).tolist()
    waves = [Waves(tuple(row)) for row in seconds]
    return lambda: CurvesInWaves(curves, Alone(waves))


def _fitted(random: np.random.Generator, devices: int) -> Curves:
    seconds = np.cumsum(random.uniform(0.01, 0.1, (devices, len(_SIZES))), axis=1)
    sizes = np.array([_SIZES] * devices, dtype=float)
    return fit(sizes, seconds, np.full(seconds.shape, 1e-4), np.full(devices, 16.0))


_CURVES = {
    "waves of micro-batches": _waves,
    "waves, flat": _flat_waves,
    "between measurements": _measured,
    "fitted": _learned,
    "fitted, in waves": _learned_waves,
}
