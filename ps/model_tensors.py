"""The tensors of a model, as workers declare them: workers whose models differ cannot train together.

This module knows neither the wire nor the tensors' values.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from idl.layout import Tensor


@dataclass(frozen=True, slots=True)
class ModelTensors:
    """A model's tensors in the order of their elements, and the worker that declared them."""

    worker: str
    tensors: Sequence[Tensor]

    def difference(self, other: "ModelTensors") -> str | None:
        """Return the first tensor in which another model differs from this one, in words, or None."""
        for number, (mine, others) in enumerate(itertools.zip_longest(self.tensors, other.tensors)):
            if mine is None or others is None or not mine.agrees_with(others):
                return (
                    f"tensor {number} of {other.worker!r} is {_show(others)}, "
                    f"but that of {self.worker!r} is {_show(mine)}"
                )
        return None


def _show(tensor: Tensor | None) -> str:
    return "missing" if tensor is None else str(tensor)
