"""PyTorch: what of a model is not trained, as workers take it from the first one."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.parameter import is_lazy

from worker.untrained import Fixed, Leaf, Untrained


def untrained_tensors(
    model: nn.Module | None, frozen: Iterable[torch.Tensor], exchanged: Iterable[torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return what is not trained of a model, by name: its frozen parameters and its buffers.

    Args:
        model: The model, if it is known.
        frozen: Parameters of the optimiser that are not trained.
        exchanged: The tensors that are sent in each iteration.
    """
    seen = set(map(id, exchanged))
    named = itertools.chain(model.named_parameters(), model.named_buffers()) if model is not None else ()
    numbered = ((f"parameter {number} of the optimiser", one) for number, one in enumerate(frozen))
    tensors = {}
    for name, tensor in itertools.chain(named, numbered):
        if id(tensor) not in seen and _has_plain_elements(tensor):
            seen.add(id(tensor))
            tensors[name.replace("_orig_mod.", "")] = tensor
    return tensors


def untrained(tensors: Mapping[str, torch.Tensor], also: Sequence[Any]) -> Untrained:
    """Return what other workers take of a model's tensors that are not trained, and of other objects.

    Raises:
        InvalidRequestError: One of the objects has no state.
    """
    return Untrained("torch", [_fixed(*named) for named in tensors.items()], also, _leaf, _tensor)


def _has_plain_elements(tensor: torch.Tensor) -> bool:
    return not (is_lazy(tensor) or tensor.is_quantized or tensor.is_meta) and tensor.layout is torch.strided


def _fixed(name: str, tensor: torch.Tensor) -> Fixed:
    @torch.no_grad()
    def write(given: NDArray[np.uint8]) -> None:
        tensor.copy_(_viewed(given, tensor.dtype, tensor.shape))

    kind = f"shape {tuple(tensor.shape)}, {str(tensor.dtype).removeprefix('torch.')}"
    return Fixed(name, kind, lambda: _bytes(tensor), write)


def _leaf(value: Any) -> Leaf | None:
    if not isinstance(value, torch.Tensor):
        return None
    return [str(value.dtype).removeprefix("torch."), list(value.shape)], _bytes(value)


def _tensor(leaf: Leaf) -> torch.Tensor:
    (dtype, shape), given = leaf
    return _viewed(given, getattr(torch, dtype), shape).clone()


def _bytes(tensor: torch.Tensor) -> NDArray[np.uint8]:
    """Return a tensor's elements, in row-major order."""
    own: NDArray[np.uint8] = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
    return own


def _viewed(given: NDArray[np.uint8], dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    # A copy, since elements must lie at multiples of their size.
    return torch.from_numpy(given.copy()).view(dtype).view(tuple(shape))
