"""The order of elements in flat arrays: a permutation whose buckets feed all shards; and what lies in it."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from idl.layout import shard_bounds
from worker.flat_order import FlatArrays, FlatOrder, backward_order, bucket_elements
from worker.torch.flat_tensors import FlatTensors


@st.composite
def orders(draw):
    """Draw an order, with its arguments."""
    sizes = draw(st.lists(st.integers(0, 40), min_size=1, max_size=12).filter(any))
    groups = [draw(st.integers(0, 2)) for _ in sizes]
    ready = draw(st.permutations(range(len(sizes))))
    shards, bucket = draw(st.integers(1, min(5, sum(sizes)))), draw(st.integers(1, 60))
    return sizes, groups, ready, shards, FlatOrder(sizes, groups, ready, shards, bucket)


@given(orders())
def test_each_element_has_one_place(drawn):
    """Pieces follow each other without a gap, and have each tensor's elements once, in their order."""
    sizes, *_, order = drawn
    assert [piece.first for piece in order.pieces] == [
        0,
        *itertools.accumulate(map(len, order.pieces[:-1])),
    ]
    for tensor, size in enumerate(sizes):
        pieces = sorted((p.begin, p.end) for p in order.pieces if p.tensor == tensor)
        elements = [element for begin, end in pieces for element in range(begin, end)]
        assert elements == list(range(size))


@given(orders())
def test_a_bucket_completes_the_same_share_of_every_shard(drawn):
    """After each bucket, every shard's range is filled up to an end, and to about the same share."""
    sizes, _, _, shards, order = drawn
    bounds = shard_bounds(sum(sizes), shards)
    arrived = set()
    for tensors, ends in zip(order.buckets, order.ends, strict=True):
        arrived.update(tensors)
        for (begin, _), end in zip(bounds, ends, strict=True):
            inside = [p for p in order.pieces if begin <= p.first < end]
            assert {piece.tensor for piece in inside} <= arrived
            assert sum(map(len, inside)) == end - begin
        done = sum(end - begin for (begin, _), end in zip(bounds, ends, strict=True))
        assert done == sum(sizes[tensor] for tensor in arrived)
        for (begin, end), at in zip(bounds, ends, strict=True):
            assert abs((at - begin) - done * (end - begin) / sum(sizes)) <= len(order.buckets)
    assert list(order.ends[-1]) == [end for _, end in bounds]


@given(orders())
def test_runs_are_of_one_group_each(drawn):
    """Runs cover the flat array, in its order."""
    _, groups, *_, order = drawn
    of_elements = [groups[piece.tensor] for piece in order.pieces for _ in range(len(piece))]
    assert [group for group, elements in order.runs for _ in range(elements)] == of_elements


@pytest.mark.parametrize(
    "changed", [{"shards": 3}, {"ready": [0, 1, 2]}, {"bucket": 100, "groups": [1, 0, 0]}]
)
def test_other_orders_have_other_names(changed):
    """An order is known by its name."""
    arguments = {"sizes": [30, 40, 50], "groups": [0, 1, 0], "ready": [2, 1, 0], "shards": 2, "bucket": 1}
    assert FlatOrder(**arguments).name == FlatOrder(**arguments).name
    assert FlatOrder(**arguments | changed).name != FlatOrder(**arguments).name


@given(orders())
def test_one_bucket_keeps_the_tensors_order(drawn):
    """Without a second bucket tensors follow each other, whatever their number of shards, as elsewhere."""
    sizes, *_, ready, shards, _ = drawn
    order = FlatOrder(sizes, [0] * len(sizes), ready, shards, sum(sizes) + 1)
    assert order.name == ""
    assert [piece.tensor for piece in order.pieces] == sorted(piece.tensor for piece in order.pieces)


@given(orders())
def test_values_are_found_where_they_were_put(drawn):
    """Each tensor's values come back in its shape, as copies, and fill the flat array piece by piece."""
    sizes, *_, order = drawn
    flat = np.zeros(sum(sizes))
    arrays = FlatArrays(flat, order, [(size, 1) for size in sizes])
    for tensor, size in enumerate(sizes):
        arrays[tensor] = 100.0 * tensor + np.arange(size)[:, None]
    for piece in order.pieces:
        elements = flat[piece.first : piece.first + len(piece)]
        assert elements.tolist() == [100 * piece.tensor + n for n in range(piece.begin, piece.end)]
    values = [arrays[tensor] for tensor in range(len(sizes))]
    flat[:] = -1
    for tensor, size in enumerate(sizes):
        assert values[tensor][:, 0].tolist() == [100 * tensor + n for n in range(size)]
        assert values[tensor].shape == (size, 1)


def test_a_backward_pass_goes_from_the_last_place_to_the_first():
    """Parameters of any group come by their places, and statistics after them."""
    order = backward_order([[2, 3], [4]], [5, 6], [1, 0, 2], shards=1, bucket=1)
    assert order.buckets == [[2], [0], [1], [3], [4]]
    assert order.runs == [(1, 4), (0, 5), (2, 11)]
    assert not backward_order([[2, 3], [4]], [5, 6], [1, 0, 2], shards=1, bucket=bucket_elements(None)).name


def test_buckets_are_of_float32():
    """A MiB has 2^18 elements, and a part of one the next whole number."""
    assert bucket_elements(1.0) == 2**18
    assert bucket_elements(1.5 / 2**18) == 2
    assert bucket_elements(float("inf")) == bucket_elements(None)


DTYPES = {np.float32: np.uint32, np.float64: np.uint64}


def bits(tensor):
    """Return the bits of a tensor's elements, as integers."""
    array = tensor.contiguous().numpy()
    return array.view(DTYPES[array.dtype.type]).tolist()


@given(orders(), st.sampled_from(list(DTYPES)), st.data())
def test_values_come_back_bit_by_bit(drawn, dtype, data):
    """So do NaNs, into tensors in any order of memory; and a single bit that differs is seen."""
    sizes, *_, order = drawn
    flat = np.zeros(order.elements, dtype)
    tensors = [torch.full((size, 1), torch.nan, dtype=torch.from_numpy(flat).dtype) for size in sizes]
    values, arrays = FlatTensors(flat, order, tensors), FlatArrays(flat, order, [t.shape for t in tensors])
    for number, tensor in enumerate(tensors):
        tensor[::2] = torch.arange(0, len(tensor), 2).reshape(-1, 1) - 3
        values[number] = tensor
    for number, tensor in enumerate(tensors):
        assert values.has_bits_of(number, tensor)
        assert arrays.has_bits_of(number, tensor.numpy())
        for copied in (torch.empty_like(tensor), torch.empty(2 * len(tensor), 1, dtype=tensor.dtype)[::2]):
            values.copy_to(number, copied)
            assert bits(copied) == bits(tensor)
    number = data.draw(st.sampled_from([number for number, size in enumerate(sizes) if size]))
    place = data.draw(st.integers(0, sizes[number] - 1))
    own = tensors[number].numpy().view(DTYPES[dtype])
    own[place] ^= 1 << data.draw(st.integers(0, 8 * own.itemsize - 1))
    assert not values.has_bits_of(number, tensors[number])
    assert not arrays.has_bits_of(number, tensors[number].numpy())
