"""An array that arrives in blocks, the last one first: its parts, and who waits for them."""

import itertools
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from idl.errors import RewoundError
from idl.layout import shard_bounds
from tests.worker.test_flat_order import orders
from worker.arriving_array import ArrivingArray


@given(orders(), st.data())
def test_the_blocks_that_are_waited_for_are_there(drawn, data):
    """Parts arrive in any order, each from its last block on; then all is where it belongs."""
    sizes, _, _, shards, order = drawn
    blocks, bounds = len(order.ends), shard_bounds(sum(sizes), shards)
    sent = np.arange(1, sum(sizes) + 1, dtype=np.float32)
    into = np.zeros_like(sent)
    arriving = ArrivingArray(into, bounds, order.ends)
    parts = [arriving.part(shard) for shard in range(shards)]
    arrived = [0] * shards
    while min(arrived) < blocks:
        shard = data.draw(st.sampled_from([s for s in range(shards) if arrived[s] < blocks]))
        number, (begin, end), cuts = arrived[shard], bounds[shard], arriving.cuts(shard)
        pieces = [sent[begin:end][a:b] for a, b in itertools.pairwise([0, *cuts, end - begin])]
        parts[shard].views[number][:] = pieces[::-1][number].data.cast("B")
        parts[shard].arrived(number)
        arrived[shard] += 1
        if min(arrived):
            first = blocks - min(arrived)
            arriving.wait(first)  # it returns at once
            tensors = set(itertools.chain(*order.buckets[first:]))
            for piece in (piece for piece in order.pieces if piece.tensor in tensors):
                run = slice(piece.first, piece.first + len(piece))
                np.testing.assert_array_equal(into[run], sent[run])
    np.testing.assert_array_equal(into, sent)


def test_who_waits_for_what_will_not_come_gets_the_error():
    """What has arrived before is there nevertheless."""
    arriving = ArrivingArray(np.zeros(4), [(0, 2), (2, 4)], [(1, 3), (2, 4)])
    for shard in range(2):
        arriving.part(shard).arrived(0)
    raised = []

    def wait():
        with pytest.raises(RewoundError) as caught:
            arriving.wait(0)
        raised.append(caught.value)

    thread = threading.Thread(target=wait)
    thread.start()
    error = RewoundError("attempt 1 has begun", 1)
    arriving.give_up(error)
    thread.join(60)
    assert raised == [error]
    arriving.wait(1)
