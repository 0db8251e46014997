"""Comparisons of states by the sums of their bits."""

import pytest
import torch

from worker.torch.training_state import _bits

TYPES = [torch.uint8, torch.bool, torch.float16, torch.bfloat16, torch.float32, torch.complex64]


@pytest.mark.parametrize("dtype", [*TYPES, torch.float64, torch.complex128])
@pytest.mark.parametrize("count", [0, 1, 2, 7, 8, 33])
def test_each_element_counts_wherever_the_tensor_lies(dtype, count):
    """The sum of bits is the same at any place in memory, and another one if an element differs."""
    for offset in range(4):
        tensor = torch.ones(offset + count, dtype=dtype)[offset:]
        assert _bits(tensor) == _bits(tensor.clone())
        for element in range(count):
            changed = torch.ones(offset + count, dtype=dtype)[offset:]
            changed[element] = 0
            assert _bits(changed) != _bits(tensor)


def test_a_sign_counts():
    """Both zeros are equal, but not in their bits."""
    for count in (1, 2, 3):
        assert _bits(torch.zeros(count)) != _bits(-torch.zeros(count))
