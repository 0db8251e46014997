"""The batches by which `evenpace lab chaos` judges runs whose batch size changes."""

import pytest

from idl.plan import JobSpec
from lab.chaos.batches import same_versions, scheduled, taken
from lab.chaos.ledgers import Rewind, Step

SPEC = JobSpec(dataset_size=20, total_batch_size=8)


def step(iteration, *counts, start=0, attempt=0):
    """A step of slices one after the other."""
    slices = []
    for number, count in enumerate(counts):
        slices.append((start, count, f"w{number}"))
        start += count
    return Step(iteration, attempt, tuple(slices))


LEDGER = [
    step(0, 5, 3),
    step(1, 4, 6, start=8),
    Rewind(1, 1),
    step(1, 3, 2, start=8, attempt=1),
    step(2, 4, 3, start=13, attempt=1),
    step(3, 4, 4, attempt=1),
]
"""The second batch has 10 samples at first, and 5 when it is repeated; the third ends the epoch."""


def test_a_schedules_sizes_begin_with_their_epochs():
    """An epoch's last batch has what is left, and the next begins at its first position with its own size."""
    batches = scheduled(JobSpec.of(20, {0: 8, 2: 12, 3: 20}))
    found = [batches(attempt, iteration) for attempt, iteration in enumerate(range(9))]
    first = [(epoch, *part) for epoch in (0, 1) for part in ((0, 8), (8, 8), (16, 4))]
    assert found == [*first, (2, 0, 12), (2, 12, 8), (3, 0, 20)]


def test_batches_of_a_ledger_are_known_by_attempt():
    """A batch that was taken back and the one in its place are both known; others are not."""
    batches, violations = taken(SPEC, {"ps-0": LEDGER}, 5, 10)
    assert violations == []
    assert batches(0, 1) == (0, 8, 10)
    assert [batches(1, iteration) for iteration in (1, 2, 3)] == [(0, 8, 5), (0, 13, 7), (1, 0, 8)]
    assert batches(0, 2) is None


def test_versions_that_came_of_other_batches_are_known():
    """In attempt 0 the second batch was another, and in attempt 2 the fourth, which was taken back, too."""
    entries = [*LEDGER, Rewind(2, 3), step(3, 8, 2, attempt=2), Rewind(3, 3), step(3, 4, 4, attempt=3)]
    final = [(0, 0, 8), (0, 8, 5), (0, 13, 7), (1, 0, 8)]
    assert same_versions(SPEC, entries, final) == {0: 1, 1: 4, 2: 3, 3: 4}
    assert same_versions(SPEC, LEDGER, final) == {0: 1, 1: 4}
    assert same_versions(SPEC, LEDGER, final[:3]) == {0: 1, 1: 3}


@pytest.mark.parametrize(
    ("least", "most", "said"),
    [
        (6, 10, "has 5 samples from 8, not from 6 to 10"),
        (5, 9, "has 10 samples from 8, not from 5 to 9"),
    ],
)
def test_sizes_beyond_the_bounds_are_told(least, most, said):
    """Those that a sizer must not choose."""
    _, violations = taken(SPEC, {"ps-0": LEDGER}, least, most)
    assert [one for one in violations if said in one]
