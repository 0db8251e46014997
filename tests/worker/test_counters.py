"""The phases of an iteration in micro-batches."""

from itertools import pairwise

import pytest

from idl.plan import Assignment
from worker.counters import SessionTally


def test_all_computing_between_micro_batches_counts():
    """Loading and computing take turns without a gap, until the gradient is complete."""
    tally, seen = SessionTally(), []
    tally.observer = lambda assignment, name, begin, end: seen.append((name, begin, end))
    first, second = (Assignment(iteration, 0, 0, 8, 8) for iteration in (0, 1))
    for assignment in (first, second):
        for _ in range(3):
            with tally.phase("load", assignment):
                pass
        tally.end_compute(assignment)
        with tally.phase("push", assignment):
            pass
    each = ["load", "compute"] * 3
    assert [name for name, *_ in seen] == [*each, "push", *each, "push"]
    for (_, _, ended), (name, began, _) in pairwise(seen[:6]):
        assert began == ended if name == "compute" else began >= ended
    computed = sum(end - begin for name, begin, end in seen if name == "compute")
    assert tally.seconds["compute"] * 1e9 == pytest.approx(computed)
