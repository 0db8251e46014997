"""Thrift messages to bytes and back: binary protocol, in one frame each.

thriftpy2's compiled codec does the work, on memory only. It trusts its input: it allocates whatever length a
peer claims before it reads the bytes. So every message is scanned first. The same scan finds the one large
binary field that a message may end with (`Bulk`), whose bytes never pass through this module.
"""

import struct
from dataclasses import dataclass
from typing import Any, NamedTuple

from thriftpy2.protocol import TCyBinaryProtocol
from thriftpy2.thrift import TApplicationException, TMessageType
from thriftpy2.transport import TCyMemoryBuffer

from idl.errors import DECLARED, EvenpaceError, ProtocolError

MAX_FRAME = 2**31 - 1  # bytes; the frame's length is a signed 32-bit word
LENGTH = struct.Struct(">i")
TIMEOUT = 10  # a TApplicationException's type, as in fbthrift: the peer has let a deadline pass

_VERSION = b"\x80\x01"
_HEADER = struct.Struct(">2sHi")  # version, message type, length of the method's name
_FIXED_SIZES = {2: 1, 3: 1, 4: 8, 6: 2, 8: 4, 10: 8}  # bool, byte, double, i16, i32, i64
_STRING, _STRUCT, _MAP, _SET, _LIST = 11, 12, 13, 14, 15
_MAX_DEPTH = 16


class Header(NamedTuple):
    """The start of a message: method, message type and sequence id."""

    method: str
    type: int
    sequence_id: int


class Bulk(NamedTuple):
    """A binary field that extends beyond the bytes received so far."""

    position: int  # of the field's length word, in bytes from the message's start
    length: int  # bytes
    depth: int  # structs that are open around it, each to be closed by one stop byte


@dataclass(frozen=True)
class Message:
    """A decoded message: its header and the struct of its arguments or its result."""

    header: Header
    body: Any


class CutOffError(ProtocolError):
    """An incomplete message: the bytes received so far are its start."""


class _BulkFoundError(Exception):
    def __init__(self, bulk: Bulk) -> None:
        self.bulk = bulk


def check_start(data: bytes) -> None:
    """Check that a message can start with `data`, at least two bytes.

    Raises:
        ProtocolError: It cannot: the peer speaks another protocol.
    """
    if data[:2] != _VERSION:
        raise ProtocolError(
            f"the frame starts with {data[:4]!r}: not a strict binary-protocol Thrift message"
        )


def read_header(data: bytes) -> tuple[Header, int]:
    """Read the header of a message, and return it with its length in bytes.

    Raises:
        ProtocolError: The bytes are not the start of a strict binary-protocol message.
    """
    try:
        _, message_type, name_length = _HEADER.unpack_from(data)
        check_start(data)
        if not 0 <= name_length <= 256:
            raise ProtocolError(f"method name of {name_length} bytes; at most 256 are allowed")
        end = _HEADER.size + name_length
        method = data[_HEADER.size : end].decode()
        (sequence_id,) = LENGTH.unpack_from(data, end)
    except struct.error:
        raise CutOffError(f"the message is cut off after {len(data)} bytes") from None
    except UnicodeDecodeError:
        raise ProtocolError("the method's name is not UTF-8") from None
    return Header(method, message_type, sequence_id), end + 4


def scan(data: bytes, frame_length: int) -> tuple[Header, Bulk | None]:
    """Check that `data`, the first bytes of a frame, can be decoded safely.

    Args:
        data: The whole frame, or a prefix of it.
        frame_length: Length of the whole frame in bytes.

    Returns:
        The header, and the field that extends beyond `data`, or None.

    Raises:
        CutOffError: The bytes are cut off outside a binary field of a struct.
        ProtocolError: The bytes are no Thrift message.
    """
    header, position = read_header(data)
    try:
        end = _skip_struct(data, position, frame_length, 1)
    except _BulkFoundError as found:
        return header, found.bulk
    except (struct.error, IndexError):
        raise CutOffError(f"the message is cut off after {len(data)} bytes") from None
    if end != frame_length:
        raise ProtocolError(f"the message ends after {end} of the frame's {frame_length} bytes")
    return header, None


def _skip_struct(
    data: bytes, position: int, frame_length: int, depth: int, in_container: bool = False
) -> int:
    if depth > _MAX_DEPTH:
        raise ProtocolError(f"structs nested deeper than {_MAX_DEPTH}")
    available = len(data)
    while True:
        field_type = data[position]
        if field_type == 0:
            return position + 1
        position += 3
        size = _FIXED_SIZES.get(field_type)
        if size is not None:
            position += size
        elif field_type == _STRING:
            (length,) = LENGTH.unpack_from(data, position)
            end = position + 4 + length
            if length < 0 or end > frame_length:
                raise ProtocolError(f"a string of {length} bytes in a frame of {frame_length}: impossible")
            if end > available and not in_container:
                raise _BulkFoundError(Bulk(position, length, depth))
            position = end
        else:
            position = _skip(data, position, field_type, frame_length, depth, in_container)
        if position >= available:
            raise IndexError


def _skip(
    data: bytes, position: int, value_type: int, frame_length: int, depth: int, in_container: bool
) -> int:
    """Skip a value that is not a struct's own string field, and return the position after it."""
    size = _FIXED_SIZES.get(value_type)
    if size is not None:
        return position + size
    if value_type == _STRUCT:
        return _skip_struct(data, position, frame_length, depth + 1, in_container)
    if depth > _MAX_DEPTH:
        raise ProtocolError(f"values nested deeper than {_MAX_DEPTH}")
    if value_type == _STRING:
        (length,) = LENGTH.unpack_from(data, position)
        position += 4 + length
        if length < 0 or position > frame_length:
            raise ProtocolError(f"a string of {length} bytes in a frame of {frame_length}: impossible")
        return position
    if value_type not in (_MAP, _SET, _LIST):
        raise ProtocolError(f"unknown Thrift type {value_type}")
    type_bytes = 2 if value_type == _MAP else 1
    element_types = data[position : position + type_bytes]
    (count,) = LENGTH.unpack_from(data, position + type_bytes)
    position += type_bytes + 4
    if not 0 <= count <= frame_length - position:  # an element takes at least a byte
        raise ProtocolError(f"a container of {count} elements in a frame of {frame_length}: impossible")
    for _ in range(count):
        for element_type in element_types:
            position = _skip(data, position, element_type, frame_length, depth + 1, True)
        if position > len(data):
            raise IndexError
    return position


def without_bulk(data: bytes, bulk: Bulk) -> bytes:
    """Return the message in `data` with its bulk field emptied, ready to be decoded."""
    return data[: bulk.position] + bytes(4 + bulk.depth)


def decode(data: bytes, struct_type: type) -> Any:
    """Decode the body of a scanned message as `struct_type` (ProtocolError: the body cannot be decoded)."""
    protocol = TCyBinaryProtocol(TCyMemoryBuffer(data))
    try:
        protocol.read_message_begin()
        body = struct_type()
        body.read(protocol)
    except (EOFError, ValueError, RecursionError, SystemError, TypeError) as error:
        raise ProtocolError(f"the message cannot be decoded: {error}") from error
    return body


def encode(header: Header, body: Any) -> bytes:
    """Encode a message, without the frame's length."""
    buffer = TCyMemoryBuffer()
    protocol = TCyBinaryProtocol(buffer)
    protocol.write_message_begin(header.method, header.type, header.sequence_id)
    body.write(protocol)
    protocol.write_message_end()
    data: bytes = buffer.getvalue()
    return data


def frame(message: bytes) -> bytes:
    """Put a message's length before it, as the framed transport requires."""
    return LENGTH.pack(len(message)) + message


def frame_around_bulk(message: bytes, depth: int, length: int) -> tuple[bytes, bytes]:
    """Split a message whose last field is an empty binary into the bytes before and after its bulk.

    Args:
        message: An encoded message that ends in an empty binary field inside `depth` structs.
        depth: Number of structs that end with that field.
        length: Length of the bulk in bytes.

    Returns:
        The frame's bytes before the bulk, and those after it.

    Raises:
        ProtocolError: The frame would be too long for its 32-bit length.
    """
    if len(message) + length > MAX_FRAME:
        raise ProtocolError(
            f"{length} bytes do not fit into one frame of at most {MAX_FRAME} bytes: use more shards"
        )
    head = message[: -4 - depth]
    return LENGTH.pack(len(message) + length) + head + LENGTH.pack(length), bytes(depth)


def application_exception(header: Header, kind: int, text: str) -> bytes:
    """Make a framed TApplicationException, Thrift's answer to a call that no handler could take."""
    reply = Header(header.method, TMessageType.EXCEPTION, header.sequence_id)
    return frame(encode(reply, TApplicationException(kind, text)))


def bulk_field(body: Any) -> bytes | None:
    """Return the value of a struct's last field."""
    value: bytes | None = getattr(body, _last_field(body))
    return value


def set_bulk_field(body: Any, value: bytes) -> None:
    """Set a struct's last field."""
    setattr(body, _last_field(body), value)


def struct_type(definition: type, container: str, field: int) -> type:
    """Return the type of a struct field of a service's container, such as field 1 of "join_args"."""
    spec: dict[int, tuple[Any, ...]] = getattr(definition, container).thrift_spec
    found: type = spec[field][2]
    return found


def _last_field(body: Any) -> str:
    spec: dict[int, tuple[Any, ...]] = body.thrift_spec
    name: str = spec[max(spec)][1]
    return name


def failure(result_type: type, error: EvenpaceError) -> Any | None:
    """Return the result struct that carries `error` as a declared exception, or None if none is declared."""
    for _, name, exception_type, *_ in _exceptions(result_type):
        if type(error) is DECLARED[exception_type.__name__]:
            return result_type(**{name: exception_type(*error.args)})  # their fields are its arguments
    return None


def raise_declared(result: Any) -> None:
    """Raise the declared exception that a result struct carries, if any, as the error of `idl.errors`."""
    for _, name, exception_type, *_ in _exceptions(type(result)):
        exception = getattr(result, name)
        if exception is not None:
            fields = (field[1] for field in exception.thrift_spec.values())
            raise DECLARED[exception_type.__name__](*(getattr(exception, field) for field in fields))


def _exceptions(result_type: type) -> list[tuple[Any, ...]]:
    spec: dict[int, tuple[Any, ...]] = result_type.thrift_spec  # type: ignore[attr-defined]
    return [field for field_id, field in spec.items() if field_id != 0]
