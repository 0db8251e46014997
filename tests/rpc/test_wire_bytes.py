"""Bytes that are no valid message, and messages that arrive in unusual pieces."""

import struct

import pytest
from thriftpy2.thrift import TMessageType

import idl
from idl.errors import ProtocolError
from rpc import codec
from tests.services import (
    Raw,
    ShardWorker,
)
from tests.wire import (
    I64,
    LARGE,
    LIST,
    MAP,
    STOP,
    STRING,
    STRUCT,
    answer,
    field,
    framed,
    message,
    pull_frame,
    text,
)

_manager = idl.batchsize_manager
Identity, Assignment = idl.common.Identity, idl.common.Assignment


# -- bytes that are no message: an answer that says why, and the end of the connection

NESTED = field(1, STRUCT, b"") * 1000 + STOP * 1001
NOT_MESSAGES: dict[str, tuple[bytes, str]] = {
    "HTTP": (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "not a strict binary-protocol Thrift message"),
    "TLS": (bytes.fromhex("1603010200010001fc0303") + bytes(64), "not a strict binary-protocol"),
    "unframed": (message("report", STOP)[4:], "a frame of -"),
    "zeros": (bytes(64), "a frame of 0 bytes"),
    "negative length": (struct.pack(">i", -5) + b"hello", "a frame of -5 bytes"),
    "oversized": (struct.pack(">i", 2**31 - 1) + message("report", bytes(8192))[4:], "a frame of 2147483647"),
    "a little oversized": (message("report", bytes(2**20 + 1)), "1 to 1048576 are allowed"),
    "old protocol": (codec.frame(text("report") + b"\x01" + bytes(4) + STOP), "not a strict binary-protocol"),
    "reply": (message("report", STOP, TMessageType.REPLY), "only calls are expected"),
    "exception": (message("report", STOP, TMessageType.EXCEPTION), "only calls are expected"),
    "name not UTF-8": (message(b"\xff\xfe", STOP), "not UTF-8"),
    "long name": (message("x" * 257, STOP), "method name of 257 bytes"),
    "name of 2 GiB": (codec.frame(struct.pack(">HHi", 0x8001, 1, 2**31 - 1)), "method name of 2147483647"),
    "empty message": (codec.frame(b"\x80"), "cut off"),
    "no stop": (message("report", b""), "cut off"),
    "too much": (message("report", STOP + b"more"), "ends after"),
    "string of 2 GiB": (
        message("report", field(1, STRING, text("", 2**31 - 1)) + STOP),
        "a string of 2147483647",
    ),
    "negative string": (message("report", field(1, STRING, text("x", -1)) + STOP), "a string of -1"),
    "long list": (
        message("report", field(1, LIST, struct.pack(">bi", I64, 2**31 - 1)) + STOP),
        "2147483647 elem",
    ),
    "negative list": (
        message("report", field(1, LIST, struct.pack(">bi", I64, -1)) + STOP),
        "of -1 elements",
    ),
    "long list of strings": (
        message("report", field(1, LIST, struct.pack(">bi", STRING, 3) + text("", 2**30)) + STOP),
        "a string of 1073741824",
    ),
    "long map": (
        message("report", field(1, MAP, struct.pack(">bbi", STRING, I64, 2**31 - 1)) + STOP),
        "2147483647",
    ),
    "nested structs": (message("report", NESTED), "nested deeper"),
    "nested lists": (
        message("report", field(1, LIST, struct.pack(">bi", LIST, 1) * 1000) + STOP),
        "nested deeper",
    ),
    "unknown type": (message("report", field(1, 99, bytes(8)) + STOP), "unknown Thrift type 99"),
    "void": (message("report", field(1, 1, b"") + STOP), "unknown Thrift type 1"),
}


@pytest.mark.parametrize("name", NOT_MESSAGES)
def test_what_is_no_message_is_refused(manager, member, name):
    """Bytes that are no valid message are answered with the reason, and the connection ends."""
    data, pattern = NOT_MESSAGES[name]
    with Raw(manager) as raw:
        raw.send(data)
        with pytest.raises(ProtocolError, match=pattern):
            answer(raw)
        assert raw.is_closed()
    member.iterate()


@pytest.mark.parametrize("cut", [1, 4, 20, -1])
def test_connection_closed_within_a_frame(manager, member, cut):
    """A call that does not arrive completely has no effect."""
    data = framed("leave", _manager.LeaveRequest(member.identity))
    with Raw(manager) as raw:
        raw.send(data[:cut])
    member.iterate()


# -- framing that is unusual and right


def test_frames_byte_by_byte(shard):
    """A call may arrive in any pieces, down to single bytes."""
    worker = ShardWorker(shard, elements=3)
    with Raw(shard) as raw:
        for byte in framed("push", worker.push_request(), worker.gradient()) + pull_frame(worker, 1, 2):
            raw.send(bytes([byte]))
        worker.stepped()
        assert answer(raw)[1].iteration == 0
        assert answer(raw)[1].parameters == worker.expected.tobytes()
    worker.iterate()
    worker.close()


@pytest.mark.parametrize("elements", [3, 1000, LARGE])
def test_frames_split_anywhere(shard, elements):
    """Wherever a push is split in two, and whatever bytes follow it, the sum is exact."""
    worker = ShardWorker(shard, elements)
    size = len(framed("push", worker.push_request(), worker.gradient()))
    places = (1, 3, 4, 5, 60, size // 2, size - 2, size - 1, 4095, 4096, 4097, 4100, 4101, 2**18 + 77)
    with Raw(shard) as raw:
        for place in (place for place in places if place < size):
            data = framed("push", worker.push_request(), worker.gradient())
            data += pull_frame(worker, worker.version + 1)
            raw.send(data[:place])
            # Asked over another connection, so that the first part has been read before the second comes.
            worker.check()
            raw.send(data[place:])
            assert answer(raw)[1].iteration == worker.version
            worker.stepped()
            assert answer(raw)[1].parameters == worker.expected.tobytes()
    worker.close()


@pytest.mark.parametrize("envelope", [4096 - d for d in range(-6, 7)])
@pytest.mark.parametrize("elements", [1, LARGE])
def test_bulk_field_near_the_end_of_the_first_read(shard, elements, envelope):
    """A gradient is found wherever its field begins, even after long fields."""
    worker = ShardWorker(shard, elements)
    push = worker.push_request()
    plain = len(framed("push", push, b"")) - 4  # bytes, up to where the field would begin
    filler = field(77, STRING, text("x" * (envelope - plain - 7)))  # a field that the service does not know
    head = framed("push", push, b"")[4:]
    body = head[:-5].replace(field(1, STRUCT, b""), filler + field(1, STRUCT, b""), 1)
    gradient = worker.gradient().tobytes()
    with Raw(shard) as raw:
        raw.send(codec.frame(body + text(gradient) + STOP))
        assert answer(raw)[1].iteration == 0
    worker.stepped()
    worker.iterate()
    worker.close()
