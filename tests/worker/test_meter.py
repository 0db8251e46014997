"""The measurements of a worker's iterations, by phase."""

from itertools import pairwise
from types import SimpleNamespace

import pytest

from idl.plan import Assignment
from worker.counters import SessionTally
from worker.meter import Meter


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


def test_pushes_and_pulls_are_communication_but_for_what_others_were_waited_for(monkeypatch):
    """A part without a transfer that was timed has no such time."""
    now = 0.0
    monkeypatch.setattr("worker.meter.time", SimpleNamespace(perf_counter=lambda: now))
    meter, part = Meter(), Assignment(0, 0, 0, 4, 8)
    with meter.pulling(part) as waited:
        now += 1003.0
        waited(1000.0)
    with meter.pushing(part):
        now += 2.0
    measured = meter.take(part)
    assert (measured.communicated, measured.waited) == (5.0, 1000.0)
    assert meter.take(part).communicated is None
    meter.close()
