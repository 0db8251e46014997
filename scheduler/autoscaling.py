"""Rules for the number of nodes that one job rents, by its rates on 1, 2, ... nodes.

Pure functions of numbers. This module must not know where the rates are from: Pollux scales by goodput, Or et
al. (MLSys 2020) by throughput, JABAS by forecast epoch times.
"""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]

ABOVE = 2 / 3
"""Part of the ideal rate above which a job is given more nodes (U of Pollux, 5.4.1)."""
TARGET = 1 / 2
"""Part of the ideal rate that it is to have then, about (L)."""


def ideal_share(rates: Array) -> Array:
    """Return each rate as a part of that with perfect scaling from one node, (nodes,).

    Args:
        rates: The best rates on 1, 2, ... nodes, (nodes,), such as goodputs; above 0, in any unit.

    Raises:
        ValueError: There is no rate, or one is not above 0 and finite.
    """
    if rates.ndim != 1 or not len(rates) or not (np.isfinite(rates) & (rates > 0)).all():
        raise ValueError(f"rates {rates.tolist()}: give a finite number above 0 for each number of nodes")
    shares: Array = rates / (rates[0] * np.arange(1, len(rates) + 1))
    return shares


def scale_up(rates: Array, nodes: int, above: float = ABOVE, target: float = TARGET) -> int:
    """Return the number of nodes to go on with, at least the present one (Pollux, 5.4.1).

    It stays unless the job has more than `above` of the ideal rate. Then it is the largest with which the job
    still has `target`.

    Args:
        rates: The best rates on 1, 2, ... nodes, (nodes,), above 0.
        nodes: Those that the job has.
        above: Part of the ideal rate, U.
        target: Part of the ideal rate, L, above 0 and at most U.

    Raises:
        ValueError: An argument is not allowed.
    """
    shares = ideal_share(rates)
    if not 1 <= nodes <= len(rates):
        raise ValueError(f"{nodes} nodes: there are rates for 1 to {len(rates)}")
    if not 0 < target <= above:
        raise ValueError(f"target {target}: must be above 0 and at most {above}, above which jobs are scaled")
    if shares[nodes - 1] <= above:
        return nodes
    return int(np.flatnonzero(shares >= target)[-1]) + 1


def quickest(seconds: Array) -> int:
    """Return the number of nodes with the least time (JABAS, 6.3), the smallest of equal ones.

    Args:
        seconds: Forecast times of the next epoch on 1, 2, ... nodes, (nodes,).
    """
    return int(np.argmin(seconds)) + 1


def cheapest(seconds: Array) -> int:
    """Return the number of nodes with the least cost, time by nodes (JABAS, (8), on like devices).

    Args:
        seconds: Forecast times of the next epoch on 1, 2, ... nodes, (nodes,).
    """
    return int(np.argmin(seconds * np.arange(1, len(seconds) + 1))) + 1
