"""PyTorch: nested states as text and tensors, so that what comes from another process is data and never code.

The text is JSON. It has outlines, of shape and type, in the place of tensors and arrays, which go beside it.
"""

import json
from collections import Counter, OrderedDict
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from idl.errors import InvalidRequestError

_PLAIN = (type(None), bool, int, float, str)
_LISTS = {kind.__name__: kind for kind in (list, tuple, set, frozenset)}
_DICTS = {kind.__name__: kind for kind in (dict, OrderedDict, Counter)}


def outline(state: Any, flat: list[torch.Tensor]) -> bytes:
    """Return a nested state as text, and add its tensors, and arrays as such of bytes, to `flat`.

    Raises:
        InvalidRequestError: There is something in it that is no data, such as an object of a script's class.
    """
    return json.dumps(_outlined(state, flat, "")).encode()


def filled(text: bytes, flat: list[torch.Tensor]) -> Any:
    """Return the state of an outline, with tensors and arrays to be filled, which are added to `flat`.

    Raises:
        InvalidRequestError: This is no outline.
    """
    try:
        return _filled(json.loads(text), flat)
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise InvalidRequestError(
            f"another worker's state cannot be read ({error}): do all run one version of evenpace?"
        ) from error


def _outlined(value: Any, flat: list[torch.Tensor], where: str) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if isinstance(value, torch.Tensor):
        flat.append(value.detach())
        return {"tensor": [list(value.shape), _name(value.dtype)]}
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        flat.append(torch.from_numpy(np.frombuffer(bytearray(value.tobytes()), np.uint8)))
        return {"array": [list(value.shape), value.dtype.str]}
    if isinstance(value, np.generic) and not value.dtype.hasobject:
        return {"number": [value.dtype.str, value.tobytes().hex()]}
    if kind is bytes:
        return {"bytes": value.hex()}
    if kind is torch.dtype:
        return {"dtype": _name(value)}
    if kind is torch.device:
        return {"device": str(value)}
    if kind is torch.Size:
        return {"tuple": list(value)}
    if kind in _LISTS.values():
        return {kind.__name__: _all_outlined(enumerate(value), flat, where)}
    if kind in _DICTS.values():
        keys = [_outlined(key, flat, where) for key in value]
        return {kind.__name__: [keys, _all_outlined(value.items(), flat, where)]}
    raise InvalidRequestError(
        f"the training's state{where} is of {kind.__module__}.{kind.__qualname__}, which workers cannot send "
        f"to those that join: have its state_dict give numbers, texts, tensors, arrays, and lists and "
        f"dictionaries of these"
    )


def _all_outlined(values: Iterable[tuple[Any, Any]], flat: list[torch.Tensor], where: str) -> list[Any]:
    return [_outlined(value, flat, f"{where}[{key!r}]") for key, value in values]


def _filled(value: Any, flat: list[torch.Tensor]) -> Any:
    if type(value) in _PLAIN:
        return value
    ((kind, given),) = value.items()
    if kind == "tensor":
        flat.append(torch.empty(given[0], dtype=_dtype(given[1])))
        return flat[-1]
    if kind == "array":
        array = np.empty(given[0], np.dtype(given[1]))
        flat.append(torch.from_numpy(array.reshape(-1).view(np.uint8)))
        return array
    if kind == "number":
        return np.frombuffer(bytes.fromhex(given[1]), np.dtype(given[0]))[0]
    if kind == "bytes":
        return bytes.fromhex(given)
    if kind == "dtype":
        return _dtype(given)
    if kind == "device":
        return torch.device(given)
    if kind in _DICTS:
        keys, values = ([_filled(one, flat) for one in part] for part in given)
        return _DICTS[kind](dict(zip(keys, values, strict=True)))
    return _LISTS[kind](_filled(one, flat) for one in given)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name)
    if not isinstance(found, torch.dtype):
        raise TypeError(f"{name} is no type of tensors")
    return found
