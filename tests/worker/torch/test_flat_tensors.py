"""Tensors within a flat array, of which some lie in pieces at several shards."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.worker.test_flat_order import orders
from worker.flat_order import FlatArrays
from worker.torch.flat_tensors import FlatTensors

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
