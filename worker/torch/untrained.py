"""PyTorch: what of a model is not trained, as workers take it from the first one."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from worker.torch.outlines import filled, outline
from worker.untrained import Bytes, Fixed, Untrained


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
    return Untrained("torch", [_fixed(*named) for named in tensors.items()], also, _outlined, _filled)


def _has_plain_elements(tensor: torch.Tensor) -> bool:
    return not (is_lazy(tensor) or tensor.is_quantized or tensor.is_meta) and tensor.layout is torch.strided


def _fixed(name: str, tensor: torch.Tensor) -> Fixed:
    @torch.no_grad()
    def write(given: Bytes) -> None:
        tensor.copy_(_viewed(given, tensor.dtype, tensor.shape))

    kind = f"shape {tuple(tensor.shape)}, {str(tensor.dtype).removeprefix('torch.')}"
    return Fixed(name, kind, lambda: _bytes(tensor), write)


def _outlined(states: list[Any]) -> tuple[str, list[Bytes]]:
    flat: list[torch.Tensor] = []
    return outline(states, flat).decode(), [_bytes(tensor) for tensor in flat]


def _filled(text: str, cut: Callable[[int], Bytes]) -> Any:
    flat: list[torch.Tensor] = []
    states = filled(text.encode(), flat)
    for tensor in flat:
        tensor.copy_(_viewed(cut(tensor.nbytes), tensor.dtype, tensor.shape))
    return states


def _bytes(tensor: torch.Tensor) -> Bytes:
    """Return a tensor's elements, in row-major order."""
    own: Bytes = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy()
    return own


def _viewed(given: Bytes, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    # A copy, since elements must lie at multiples of their size.
    return torch.from_numpy(given.copy()).view(dtype).view(tuple(shape))
