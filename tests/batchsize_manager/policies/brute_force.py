"""Splits of a batch, compared with all that there are."""

import itertools

import numpy as np

from batchsize_manager.policies.curves import Curves
from batchsize_manager.policies.overlapped_curves import OverlappedCurves
from batchsize_manager.policies.solver import split_evenly_in_time
from idl.bounds import Bounds


def check_optimal(found: Curves | OverlappedCurves, total: int, limits: list[Bounds]) -> None:
    """Check that the split by curves is within the bounds, and that no other one takes less time."""
    counts = split_evenly_in_time(found.equal_time(), total, limits)

    ranges = [range(bound.minimum, bound.maximum + 1) for bound in limits]
    splits = [its for its in itertools.product(*ranges) if sum(its) == total]
    best = min(found.times(np.array(its, dtype=float)).max() for its in splits)
    assert sum(counts) == total
    assert tuple(counts) in splits
    assert found.times(np.array(counts, dtype=float)).max() <= best * (1 + 1e-9)
