"""PyTorch: a few elements of each tensor, by which it is seen that somebody has set it to other values."""

import itertools
from collections.abc import Sequence

import torch

_TENSORS = 8  # that are looked at in each step
_ELEMENTS = 64  # of each


class ElementSamples:
    """Elements of a few tensors at a time, in turn, and of each tensor others in the next turn.

    Args:
        tensors: The tensors; those whose elements have gaps between them in memory are left out.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        flat = ((number, _flat(tensor)) for number, tensor in enumerate(tensors))
        self._numbers = [number for number, elements in flat if elements is not None and len(elements)]
        self._tensors = tensors
        self._turns = itertools.cycle(self._numbers)
        self._turn = 0
        self._noted: list[tuple[int, int, torch.Tensor]] = []  # a tensor's number, the turn, and bytes

    def note(self) -> None:
        """Note elements of the next tensors."""
        numbers = list(itertools.islice(self._turns, min(_TENSORS, len(self._numbers))))
        self._turn += 1
        self._noted = [(number, self._turn, self._sample(number, self._turn)) for number in numbers]

    def changed(self) -> int | None:
        """Return the number of a tensor of which a noted element has other bits now; None if none has.

        One that is of another type by now, or on another device, is not compared.
        """
        for number, turn, noted in self._noted:
            now = self._sample(number, turn)
            if (now.shape, now.device) == (noted.shape, noted.device) and not torch.equal(now, noted):
                return number
        return None

    def _sample(self, number: int, turn: int) -> torch.Tensor:
        """Return the bytes of a tensor's elements whose turn it is."""
        elements = _flat(self._tensors[number])
        if elements is None:  # it lies in other memory now
            return torch.empty(0)
        stride = -(-len(elements) // _ELEMENTS)
        # Multiplied by what has no divisor in common with most strides, so that turns are spread out.
        return elements[turn * 7919 % stride :: stride].clone().view(torch.uint8)


def _flat(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return a view of a tensor's elements as they lie in memory, (elements,); None if there are gaps."""
    outwards = sorted(range(tensor.ndim), key=tensor.stride, reverse=True)
    dense = tensor.detach().permute(outwards)
    return dense.view(-1) if dense.is_contiguous() else None
