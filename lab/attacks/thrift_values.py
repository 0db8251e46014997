"""Encoding of Thrift values in the binary protocol, without any check, so that invalid ones can be sent."""

import struct
from typing import Any

BOOL, BYTE, DOUBLE, I16, I32, I64 = 2, 3, 4, 6, 8, 10
STRING, STRUCT, MAP, SET, LIST = 11, 12, 13, 14, 15
BINARY = 18  # thriftpy2's own type, for a string that is no text
FORMATS = {BOOL: ">b", BYTE: ">b", DOUBLE: ">d", I16: ">h", I32: ">i", I64: ">q"}

Field = tuple[int, int, Any]  # type, id, value; a struct's value is a list of these
Fields = list[Field]


def write(kind: int, value: Any) -> bytes:
    """Return a value's bytes as a value of the Thrift type `kind`; nothing is checked."""
    if kind in FORMATS:
        return struct.pack(FORMATS[kind], value)
    if kind == STRING:
        data: bytes = value
        return struct.pack(">i", len(data)) + data
    if kind == STRUCT:
        parts = [struct.pack(">bh", kind, number) + write(kind, inner) for kind, number, inner in value]
        return b"".join(parts) + b"\0"
    if kind == MAP:
        key_kind, value_kind, pairs = value
        parts = [write(key_kind, key) + write(value_kind, inner) for key, inner in pairs]
        return struct.pack(">bbi", key_kind, value_kind, len(pairs)) + b"".join(parts)
    element, values = value
    return struct.pack(">bi", element, len(values)) + b"".join(write(element, inner) for inner in values)
