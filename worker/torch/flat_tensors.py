"""PyTorch: tensors within a flat array whose elements lie in a `FlatOrder`."""

from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray

from worker.flat_order import FlatOrder, has_bits_of


class FlatTensors:
    """The values of tensors in a flat array, which is shared and not copied.

    Args:
        flat: (elements,).
        order: The order of the tensors' elements.
    """

    def __init__(self, flat: NDArray[Any], order: FlatOrder, tensors: Sequence[torch.Tensor]) -> None:
        self._shapes = [tensor.shape for tensor in tensors]
        self._arrays = order.parts(flat)
        self._parts = [list(map(torch.from_numpy, parts)) for parts in self._arrays]
        for parts, shape in zip(self._parts, self._shapes, strict=True):
            if len(parts) == 1:
                parts[0] = parts[0].view(shape)

    def __getitem__(self, number: int) -> torch.Tensor:
        """Return a tensor's values: a view where they lie next to each other, else a copy."""
        parts = self._parts[number]
        return parts[0] if len(parts) == 1 else self._joined(number)

    def __setitem__(self, number: int, values: torch.Tensor | None) -> None:
        """Copy a tensor's values into the flat array; None stands for zeros."""
        parts = self._parts[number]
        if values is None:
            for part in parts:
                part.zero_()
        elif len(parts) == 1:
            parts[0].copy_(values)
        else:
            for part, value in zip(parts, self._split(number, values.reshape(-1)), strict=True):
                part.copy_(value)

    def copy_to(self, number: int, tensor: torch.Tensor) -> None:
        """Copy a tensor's values into a tensor of its shape."""
        parts = self._parts[number]
        if len(parts) == 1 or not tensor.is_contiguous():
            tensor.copy_(self[number])
        else:
            for part, place in zip(parts, self._split(number, tensor.view(-1)), strict=True):
                place.copy_(part)

    def has_bits_of(self, number: int, tensor: torch.Tensor) -> bool:
        """Return whether a tensor has a dense one's values, on the CPU, bit by bit, NaNs included."""
        parts = self._arrays[number]
        flat = tensor.detach().reshape(-1)
        return not parts or has_bits_of(parts, flat.to(self._parts[number][0].dtype).numpy())

    def _split(self, number: int, flat: torch.Tensor) -> Sequence[torch.Tensor]:
        return torch.split(flat, list(map(len, self._arrays[number])))

    def _joined(self, number: int) -> torch.Tensor:
        parts = [part.reshape(-1) for part in self._parts[number]]
        shape = self._shapes[number]
        return torch.cat(parts).view(shape) if parts else torch.empty(shape)
