"""What workers send to a shard, checked and as the values that it works with.

A field that is missing or not of its type is None: an error names it.
"""

from typing import Any

from batchsize_manager.synchronisation import Synchronisation
from ps.layout import Group
from ps.model import Model, Tensor
from rpc import check
from rpc.errors import InvalidRequestError
from rpc.service import Call

_MAX_GROUPS = 10_000
_MAX_TENSORS = 100_000
_MAX_DIMENSIONS = 64
_MAX_TENSOR_NAME = 1000  # characters: nested layers have long ones


def request_of(call: Call) -> Any:
    """A call's request."""
    if call.request is None:
        raise InvalidRequestError(f"{call.method}: argument 1, request, is missing")
    return call.request


def synchronisation(wire: Any) -> Synchronisation:
    """How workers wait for each other; nothing means BSP."""
    if wire is None:
        return Synchronisation()
    try:
        return Synchronisation(
            check.text("mode", wire.mode),
            None if wire.staleness is None else check.integer("staleness", wire.staleness, 0),
            None
            if wire.replicas_to_aggregate is None
            else check.integer("replicas_to_aggregate", wire.replicas_to_aggregate, 1),
        )
    except ValueError as error:
        raise InvalidRequestError(str(error)) from error


def groups(wire: Any) -> tuple[Group, ...]:
    """The parameter groups."""
    result = []
    for group in _list("groups", wire, 1, _MAX_GROUPS):
        elements = check.integer("elements", group.elements, 0, 2**40)
        options = {
            check.text("option", key): check.number(f"option {key}", value, -1e30, 1e30)
            for key, value in (group.options or {}).items()
        }
        result.append(Group(elements, options, bool(group.statistics)))
    return tuple(result)


def model(worker: str, wire: Any) -> Model | None:
    """The model's tensors, if the worker tells them."""
    if not wire:
        return None
    tensors = []
    for number, tensor in enumerate(_list("tensors", wire, 1, _MAX_TENSORS)):
        where = f"tensor {number}"
        name = "" if tensor.name == "" else check.text(f"{where}, name", tensor.name, _MAX_TENSOR_NAME)
        shape = _list(f"{where}, shape", tensor.shape, 0, _MAX_DIMENSIONS)
        tensors.append(
            Tensor(
                name,
                tuple(check.integer(f"{where}, shape", size, 0, 2**40) for size in shape),
                check.text(f"{where}, dtype", tensor.dtype),
            )
        )
    return Model(worker, tensors)


def _list(name: str, value: Any, low: int, high: int) -> list[Any]:
    if type(value) is not list or not low <= len(value) <= high:
        raise InvalidRequestError(f"{name}: must be a list of {low} to {high}")
    return value
