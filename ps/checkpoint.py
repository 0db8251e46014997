"""The file from which a shard resumes a job bit by bit: plain bytes, no code.

It has a first line, the length of a JSON header, the header, the parameters, the optimiser's tensors in the
header's order, what is not trained, and a checksum of all of these. This module decides neither when a file
is written nor how long it is kept.
"""

import json
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from idl.layout import Group, Layout, Part, Tensor
from idl.synchronisation import Synchronisation
from ps.model_tensors import ModelTensors
from ps.optimizer_state import ShardSnapshot
from rpc.writing import writing

_FIRST_LINE = b"evenpace shard checkpoint 2\n"
_LENGTH = struct.Struct("<Q")
_CHECKSUM = struct.Struct("<I")
_SCALARS = {"float32": torch.float32, "float64": torch.float64, "int64": torch.int64}


class UnreadableError(ValueError):
    """A file that is not a complete checkpoint."""


@dataclass(frozen=True)
class ShardCheckpoint:
    """The state of a job's shard at one version."""

    job: str  # the job's name
    attempt: int  # the attempt that the job is in
    synchronisation: Synchronisation  # how its workers wait for each other
    model: ModelTensors | None  # the model's tensors, if a worker has declared them
    snapshot: ShardSnapshot  # parameters and optimiser's state
    part: Part | None = None  # which part of all parameters they are, if a worker has said it
    # By version, of this checkpoint and of others that there may be, `Parameters.place`.
    places: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    untrained: torch.Tensor | None = None  # as `ShardJob` has it


def write(path: Path, checkpoint: ShardCheckpoint) -> None:
    """Write a checkpoint; it is on the disk when this returns.

    Raises:
        OSError: The file cannot be written; it names `path`. A part of it may be there.
    """
    checksum = 0
    with writing(path), path.open("wb") as stream:
        for piece in _pieces(checkpoint):
            stream.write(piece)
            checksum = zlib.crc32(piece, checksum)
        stream.write(_CHECKSUM.pack(checksum))
        stream.flush()
        os.fsync(stream.fileno())


def read(path: Path) -> ShardCheckpoint:
    """Read a checkpoint.

    Raises:
        UnreadableError: The file is no checkpoint, or an incomplete one.
        OSError: The file cannot be read.
    """
    data = _checked(path)
    try:
        begin = len(_FIRST_LINE) + _LENGTH.size
        end = begin + _LENGTH.unpack_from(data, len(_FIRST_LINE))[0]
        return _unpacked(json.loads(bytes(data[begin:end])), data[end:])
    except (ValueError, KeyError, TypeError, struct.error) as error:
        raise UnreadableError(f"{path} is not of this version of evenpace: {error!r}") from error


def check(path: Path) -> None:
    """Verify a file's checksum.

    Raises:
        UnreadableError: The file is no checkpoint, or an incomplete one.
        OSError: The file cannot be read.
    """
    _checked(path)


def _checked(path: Path) -> memoryview:
    """Return a file's bytes without the checksum, which is verified."""
    data = memoryview(path.read_bytes())
    if data[: len(_FIRST_LINE)] != _FIRST_LINE:
        raise UnreadableError(f"{path} is not a checkpoint of a shard")
    body, checksum = data[: -_CHECKSUM.size], data[-_CHECKSUM.size :]
    if zlib.crc32(body) != _CHECKSUM.unpack(checksum)[0]:
        raise UnreadableError(f"{path} is torn: its checksum is not that of its bytes")
    return body


def _pieces(checkpoint: ShardCheckpoint) -> Iterator[bytes | memoryview]:
    snapshot = checkpoint.snapshot
    model = checkpoint.model
    tensors = [snapshot.parameters]
    state = []
    for own in snapshot.state:
        state.append({key: _described(value) for key, value in own.items()})
        tensors += [value for value in own.values() if isinstance(value, torch.Tensor) and value.ndim]
    if checkpoint.untrained is not None:
        tensors.append(checkpoint.untrained)
    header = {
        "job": checkpoint.job,
        "attempt": checkpoint.attempt,
        "synchronisation": asdict(checkpoint.synchronisation),
        "model": model and {"worker": model.worker, "tensors": [asdict(each) for each in model.tensors]},
        "part": checkpoint.part and asdict(checkpoint.part),
        "layout": {
            "dtype": snapshot.layout.dtype,
            "optimizer": snapshot.layout.optimizer,
            "groups": [asdict(group) for group in snapshot.layout.groups],
            "order": snapshot.layout.order,
        },
        "version": snapshot.version,
        "steps": snapshot.steps,
        "places": [[version, *place] for version, place in checkpoint.places.items()],
        "state": state,
        "untrained": None if checkpoint.untrained is None else len(checkpoint.untrained),
    }
    encoded = json.dumps(header).encode()
    yield _FIRST_LINE + _LENGTH.pack(len(encoded)) + encoded
    for tensor in tensors:
        yield tensor.numpy().tobytes() if not len(tensor) else tensor.numpy().data.cast("B")


def _described(value: torch.Tensor | float) -> Any:
    """Return the header's entry for a value of the optimiser's state; a flat tensor's numbers come later."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.ndim:
        return {"elements": len(value)}
    return {"scalar": value.item(), "dtype": str(value.dtype).removeprefix("torch.")}


def _unpacked(header: Mapping[str, Any], tensors: memoryview) -> ShardCheckpoint:
    model, part, layout = header["model"], header["part"], header["layout"]
    groups = tuple(Group(**group) for group in layout["groups"])
    laid_out = Layout(layout["dtype"], layout["optimizer"], groups, order=layout.get("order", ""))

    def take(elements: int, dtype: str = laid_out.dtype) -> torch.Tensor:
        nonlocal tensors
        nbytes = elements * np.dtype(dtype).itemsize
        taken, tensors = tensors[:nbytes], tensors[nbytes:]
        # NumPy copies without blocking other threads.
        return torch.from_numpy(np.frombuffer(taken, dtype=dtype).copy())

    def value(described: Any) -> torch.Tensor | float:
        if not isinstance(described, dict):
            return described  # type: ignore[no-any-return]
        if "elements" in described:
            return take(described["elements"])
        return torch.tensor(described["scalar"], dtype=_SCALARS[described["dtype"]])

    parameters = take(laid_out.elements)
    state = [{key: value(described) for key, described in own.items()} for own in header["state"]]
    beside = header.get("untrained")  # earlier versions had none
    return ShardCheckpoint(
        header["job"],
        header["attempt"],
        Synchronisation(**header["synchronisation"]),
        model
        and ModelTensors(
            model["worker"],
            [Tensor(each["name"], tuple(each["shape"]), each["dtype"]) for each in model["tensors"]],
        ),
        ShardSnapshot(laid_out, header["version"], header["steps"], parameters, state),
        part and Part(**part),
        {version: (epoch, start) for version, epoch, start in header["places"]},
        None if beside is None else take(beside, "uint8"),
    )
