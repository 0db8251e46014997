"""The cuts of a batch into micro-batches."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idl.cuts import Cuts

TOTALS = st.integers(1, 500)
SIZES = st.integers(1, 70)


@given(TOTALS, SIZES)
def test_micro_batches_tile_the_batch(total, size):
    """They follow each other from the first sample to the last, each within a sample of what it may have."""
    cuts = Cuts(total, size)
    positions = [cuts.position(index) for index in range(len(cuts) + 1)]
    sizes = [stop - start for start, stop in pairwise(positions)]
    assert (positions[0], positions[-1]) == (0, total)
    assert sizes[:-2] == [size] * len(sizes[:-2])
    assert max(sizes) <= max(size, 3)
    assert min(sizes) > 1 or 1 in (total, size)  # batch normalisation refuses a single sample
    assert list(cuts.within(0, total)) == list(pairwise(positions))


@given(TOTALS, SIZES)
def test_positions_that_are_cuts_have_an_index(total, size):
    """The inverse of the position; any other is refused, with the position and the batch's size."""
    cuts = Cuts(total, size)
    positions = [cuts.position(index) for index in range(len(cuts) + 1)]
    assert [cuts.index(position) for position in positions] == list(range(len(cuts) + 1))
    for position in {*range(total + 1)} - {*positions}:
        with pytest.raises(ValueError, match=f"position {position} of a batch of {total} samples: not a cut"):
            cuts.index(position)


@given(TOTALS, SIZES, st.lists(st.integers(0, 9), min_size=1, max_size=6), st.data())
def test_slices_of_whole_micro_batches(total, size, weights, data):
    """Slices of whole micro-batches, in any split, sum to the batch."""
    cuts = Cuts(total, size)
    taken, shares = 0, []
    for weight in weights[:-1]:
        shares.append(min(weight, len(cuts) - taken))
        taken += shares[-1]
    shares.append(len(cuts) - taken)
    counts = cuts.counts(shares)
    assert sum(counts) == total
    assert list(map(cuts.number, counts)) == shares
