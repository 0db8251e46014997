"""The tensors of a model, as workers tell them: those whose models differ cannot train together.

It knows neither the wire nor what the tensors hold.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from idl.layout import Tensor


@dataclass(frozen=True, slots=True)
class Model:
    """A model's tensors in the order of their elements, and the worker that told them."""

    worker: str
    tensors: Sequence[Tensor]

    def difference(self, other: "Model") -> str | None:
        """The first tensor in which another model differs from this one, in words; None if none does."""
        for number, (mine, others) in enumerate(itertools.zip_longest(self.tensors, other.tensors)):
            if mine is None or others is None or not mine.agrees_with(others):
                return (
                    f"tensor {number} of {other.worker!r} is {_show(others)}, "
                    f"but that of {self.worker!r} is {_show(mine)}"
                )
        return None


def _show(tensor: Tensor | None) -> str:
    return "missing" if tensor is None else str(tensor)
