"""Frozen dataclasses as JSON: written field by field, and checked against the types of the fields when read.

Knows no class in particular: a field that is added to one is written and read from then on.
"""

import functools
import json
import types
import typing
from typing import Any, TypeVar

_T = TypeVar("_T")


def to_json(value: Any) -> str:
    """Return a dataclass of numbers, texts, truths, tuples and other such dataclasses as JSON."""
    return json.dumps(value, default=_fields)


def from_json(kind: type[_T], text: str) -> _T:
    """Return the value of which `to_json` made a text; fields that the text lacks have their defaults.

    Args:
        kind: The value's class.
        text: JSON.

    Raises:
        ValueError: The text is no JSON, or holds something else than the class has.
        TypeError: It is no text, or a field that has no default is missing.
    """
    value: _T = _read(kind, json.loads(text))
    return value


def _fields(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


@functools.cache
def _kinds(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _read(kind: Any, value: Any) -> Any:
    """Return a value of a kind: a class, `X | None` or `tuple[X, ...]`."""
    if isinstance(kind, types.UnionType):
        return None if value is None else _read(typing.get_args(kind)[0], value)
    if typing.get_origin(kind) is tuple and isinstance(value, list):
        return tuple(_read(typing.get_args(kind)[0], item) for item in value)
    if hasattr(kind, "__dataclass_fields__") and isinstance(value, dict):
        kinds = _kinds(kind)
        if unknown := value.keys() - kinds.keys():
            raise ValueError(f"{', '.join(sorted(unknown))}: unknown")
        return kind(**{name: _read(kinds[name], item) for name, item in value.items()})
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise ValueError(f"{value!r:.80}: must be of type {kind}")
    return value
