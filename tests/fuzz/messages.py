"""Any bytes as a message, as `rpc.peer` and `rpc.client` read it: it is decoded or refused, and nothing else.

    python -m tests.fuzz.messages -runs=1000000 CORPUS

The first byte says how much of the frame is at hand, the rest is the frame.
"""

import contextlib
import math
import sys
from pathlib import Path
from typing import Any

import idl
from idl.errors import EvenpaceError, ProtocolError
from lab.attacks.inputs import Inputs
from rpc import codec

SERVICES = (idl.batchsize_manager.BatchSizeManager, idl.parameter_server.ParameterServer)


def take(data: bytes) -> None:
    """Read `data`; an error of any other kind than ours, or a broken invariant, is a bug."""
    if not data:
        return
    frame = data[1:]
    at_hand = frame[: math.ceil(len(frame) * data[0] / 255)]
    try:
        header, bulk = codec.scan(at_hand, len(frame))
    except ProtocolError:
        return
    if bulk is None:
        assert len(at_hand) == len(frame), "a message ended before its frame did"
        message = frame
    else:
        assert 0 <= bulk.length <= len(frame), "a field longer than its frame"
        assert bulk.position + 4 <= len(at_hand) < bulk.position + 4 + bulk.length <= len(frame)
        message = codec.without_bulk(at_hand, bulk)
    for service in SERVICES:
        for container in ("args", "result"):
            kind = getattr(service, f"{header.method}_{container}", None)
            if isinstance(kind, type):
                _decode(header, message, kind)


def _decode(header: codec.Header, message: bytes, kind: Any) -> None:
    try:
        body = codec.decode(message, kind)
    except ProtocolError:
        return
    again = codec.encode(header, body)
    codec.scan(again, len(again))
    assert codec.encode(header, codec.decode(again, kind)) == again, "a message changes as it is passed on"
    if kind.__name__.endswith("_result"):
        with contextlib.suppress(EvenpaceError):
            codec.raise_declared(body)


def write_corpus(folder: Path, count: int = 200) -> None:
    """Right and wrong messages from the IDL, to begin with."""
    for number, service in enumerate(SERVICES):
        inputs = Inputs(service, ("a", "b/c"), seed="corpus")
        for index, one in enumerate(inputs.batch(count)):
            (folder / f"{number}-{index}").write_bytes(b"\xff" + one.data[4:])


if __name__ == "__main__":
    import atheris

    atheris.instrument_func(take)
    for function in (codec.scan, codec._skip_struct, codec._skip, codec.read_header, codec.decode):
        atheris.instrument_func(function)
    atheris.Setup(sys.argv, take)
    atheris.Fuzz()
