"""Inputs for attacks: bytes that are no message, invalid messages, and valid ones at the wrong time.

They are made from the IDL, so each field's type is known, and one rule or another is broken on purpose. The
same seed gives the same inputs, as long as the same is known of the honest job. Nothing here knows sockets.
"""

import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from thriftpy2.thrift import TMessageType

from rpc import codec

BOOL, BYTE, DOUBLE, I16, I32, I64 = 2, 3, 4, 6, 8, 10
STRING, STRUCT, MAP, SET, LIST = 11, 12, 13, 14, 15
BINARY = 18  # thriftpy2's own type, for a string that is no text
FORMATS = {BOOL: ">b", BYTE: ">b", DOUBLE: ">d", I16: ">h", I32: ">i", I64: ">q"}

Field = tuple[int, int, Any]  # type, id, value; a struct's value is a list of these
Fields = list[Field]

_RANGES = {BOOL: 1, BYTE: 7, I16: 15, I32: 31, I64: 63}  # bits
_SMALL = (0, 1, 2, 3, 4, 8, 16, 64)
_EXTREMES = (-1, 2**31 - 1, 2**31, 2**53, 2**62, 2**63 - 1, -(2**63))
_DOUBLES = (0.0, 0.1, 0.5, 1.0, 30.0)
_EXTREME_DOUBLES = (-1.0, 1e-300, 1e308, float("inf"), float("-inf"), float("nan"))
_LENGTHS = (-1, -(2**31), 0, 1, 2**16, 2**20 + 1, 2**30, 2**31 - 1)
_TEXTS = (b"", b"\0", b"\xff\xfe", b"a/b", b"x" * 201, "\u202e\ud7ff".encode(), b"%s%n{0}", b"../../etc")
_WORDS = {
    "dtype": (b"float32", b"float64"),
    "optimizer": (b"sgd", b"adam", b"adamw", b"keras_sgd"),
    "mode": (b"bsp", b"ssp", b"asp", b"backup"),
    "slot": (b"momentum_buffer", b"exp_avg", b"exp_avg_sq"),
    "option": (b"lr", b"momentum", b"beta1", b"amsgrad"),
}
_ELEMENTS = 16  # of most jobs that attackers open, so that what follows gets beyond the first check

STOLEN = "stolen identity"  # a kind of input that no service may accept


@dataclass
class Known:
    """Facts about the honest job that attackers know."""

    job: str  # name of the job at the service
    workers: Sequence[tuple[str, str]] = ()  # names and incarnations of its workers
    iteration: int = 0  # its current iteration
    attempt: int = 0  # its current attempt


@dataclass(frozen=True)
class Input:
    """One input."""

    kind: str  # kind of the input
    data: bytes  # bytes to be sent
    sequence: int = -1  # sequence id, where it is a call
    ends: bool = False  # whether the service may end the connection for it


@dataclass
class Inputs:
    """Endless inputs for one service, of attackers who have `jobs` of their own there."""

    definition: type
    jobs: Sequence[str]
    seed: str
    victim: Known | None = None  # the honest job, if inputs are to name it

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        methods: list[str] = self.definition.thrift_services  # type: ignore[attr-defined]
        self._methods = [method for method in methods if method != "authenticate"]
        self._sequence = 0
        self._recorded: list[Input] = []
        common = [self._plausible] * 6 + [self._extreme] * 4 + [self._misshapen] * 4 + [self._far] * 3
        common += [self._again] * 2 + [self._large]
        if self.victim is not None:
            common += [self._stolen] * 5
        self._common: Sequence[Callable[[], Input]] = common
        self._ending = (self._cut, self._lying, self._flipped, self._noise, self._nested, self._unknown)

    def batch(self, count: int) -> list[Input]:
        """Return `count` inputs for one connection, of which the last alone may end it."""
        inputs = [self._random.choice(self._common)() for _ in range(count)]
        if self._random.random() < 0.5:
            inputs.append(self._random.choice(self._ending)())
        return inputs

    def see(self, iteration: int) -> None:
        """Note the honest job's current iteration."""
        if self.victim is not None:
            self.victim.iteration = iteration

    # -- messages of the right shape

    def _plausible(self) -> Input:
        """Make a call with values that are valid in some state of the service."""
        return self._call("plausible fields", *self._arguments(0.02))

    def _extreme(self) -> Input:
        """Make a call with values at and beyond the ends of what is allowed."""
        return self._call("extreme fields", *self._arguments(0.4))

    def _far(self) -> Input:
        """Make a valid call for iterations far off, by a worker that the service does not know."""
        method, arguments = self._arguments(0.0)
        far = self._random.choice((10**6, 2**40, 2**62))
        changed = [
            (kind, number, _with_integers(value, far)) if kind == STRUCT else (kind, number, value)
            for kind, number, value in arguments
        ]
        return self._call("out of turn", method, changed)

    def _again(self) -> Input:
        """Repeat an earlier call to the byte; some are as the honest job's workers would have sent them."""
        if not self._recorded or self._random.random() < 0.3:
            victim = self.victim if self._random.random() < 0.5 else None
            method, arguments = self._arguments(0.0, victim)
            self._recorded = [*self._recorded[-200:], self._call("replayed", method, arguments)]
        return self._random.choice(self._recorded)

    def _stolen(self) -> Input:
        """Make a call in the honest job's name that would do it harm if it were accepted."""
        assert self.victim is not None
        method, arguments = self._arguments(0.0, self.victim)
        return self._call(STOLEN, method, arguments)

    def _large(self) -> Input:
        """Make a message that takes more than one read, with a large field."""
        method = self._random.choice(self._methods)
        size = self._random.choice((3000, 5000, 20_000, 70_000))
        arguments = [(STRUCT, 1, [*self._request(method, 0.0, None), (STRING, 99, bytes(size))])]
        return self._call("large", method, arguments)

    def _misshapen(self) -> Input:
        """Make a call with fields missing, doubled, unknown or of another type: Thrift, but not our IDL."""
        method, arguments = self._arguments(0.05)
        for _ in range(self._random.randint(1, 3)):
            self._misshape(arguments)
        return self._call("wrong types", method, arguments)

    # -- what is no message, or may be none

    def _cut(self) -> Input:
        data = self._plausible().data
        return Input("cut off", data[: self._random.randrange(1, len(data))], ends=True)

    def _lying(self) -> Input:
        """Make a message with a wrong length in it."""
        data = bytearray(self._plausible().data)
        at = self._random.choice((0, 8, self._random.randrange(0, len(data) - 4)))
        data[at : at + 4] = struct.pack(">i", self._random.choice(_LENGTHS))
        return Input("lying lengths", bytes(data), ends=True)

    def _flipped(self) -> Input:
        data = bytearray(self._plausible().data)
        for _ in range(self._random.randint(1, 8)):
            data[self._random.randrange(4, len(data))] ^= 1 << self._random.randrange(8)
        return Input("flipped bits", bytes(data), ends=True)

    def _noise(self) -> Input:
        return Input("random bytes", self._random.randbytes(self._random.randint(1, 300)), ends=True)

    def _nested(self) -> Input:
        depth = self._random.choice((15, 16, 17, 1000))
        kind = self._random.choice((STRUCT, LIST))
        opening = struct.pack(">bh", STRUCT, 1) if kind == STRUCT else struct.pack(">bi", LIST, 1)
        body = struct.pack(">bh", kind, 7) + opening * depth + bytes(depth + 2)
        return Input("nested", self._message(self._random.choice(self._methods), body), ends=True)

    def _unknown(self) -> Input:
        """Make a call of a method that does not exist, or a message that is no call."""
        kind = self._random.choice((TMessageType.CALL, TMessageType.REPLY, TMessageType.ONEWAY, 0, 99))
        method = self._random.choice(("", "nothing", "__init__", "x" * 256, *self._methods))
        return Input("unknown methods", self._message(method, b"\0", kind), ends=True)

    # -- fields from the IDL

    def _arguments(self, extreme: float, victim: Known | None = None) -> tuple[str, Fields]:
        """Return a method and its arguments as fields; `extreme` is the share of extreme values, 0 to 1."""
        method = self._random.choice(self._methods)
        arguments: Fields = [(STRUCT, 1, self._request(method, extreme, victim))]
        spec = getattr(self.definition, f"{method}_args").thrift_spec
        if 2 in spec:  # the bulk field
            sizes = (4 * _ELEMENTS, 4 * _ELEMENTS, 0, 3, 4 * _ELEMENTS + 4, 8000)
            arguments.append((STRING, 2, self._random.randbytes(self._random.choice(sizes))))
        return method, arguments

    def _request(self, method: str, extreme: float, victim: Known | None) -> Fields:
        spec = getattr(self.definition, f"{method}_args").thrift_spec
        return self._struct(spec[1][2], extreme, victim)

    def _struct(self, struct_type: Any, extreme: float, victim: Known | None) -> Fields:
        fields: Fields = []
        if struct_type.__name__ == "Identity":
            return self._identity(victim)
        for number, entry in struct_type.thrift_spec.items():
            kind, name = entry[:2]
            kind = STRING if kind == BINARY else kind
            if kind != STRUCT and self._random.random() < 0.1:
                continue  # left out
            fields.append((kind, number, self._value(kind, name, entry[2], extreme, victim)))
        return fields

    def _value(self, kind: int, name: str, nested: Any, extreme: float, victim: Known | None) -> Any:
        choose, is_extreme = self._random.choice, self._random.random() < extreme
        if kind == STRUCT:
            return self._struct(nested, extreme, victim)
        if kind in (LIST, SET):
            element, inner = nested if isinstance(nested, tuple) else (nested, None)
            count = choose((0, 3, 50)) if is_extreme else 1
            return element, [self._value(element, name, inner, extreme, victim) for _ in range(count)]
        if kind == MAP:
            key, value = nested
            pairs = [
                (
                    choose(_WORDS["option"])
                    if key == STRING
                    else self._value(key, name, None, extreme, victim),
                    self._value(value, name, None, extreme, victim),
                )
                for _ in range(choose((0, 1, 1, 3)))
            ]
            return key, value, pairs
        if kind == DOUBLE:
            return choose(_EXTREME_DOUBLES if is_extreme else _DOUBLES)
        if kind == STRING:
            return self._text(name, is_extreme, victim)
        bits = _RANGES[kind]
        value = choose(_EXTREMES) if is_extreme else self._integer(name, victim)
        return max(-(2**bits), min(value, 2**bits - 1))

    def _integer(self, name: str, victim: Known | None) -> int:
        if name == "elements":
            return _ELEMENTS
        if victim is not None and name in ("iteration", "version", "known"):
            return max(0, victim.iteration + self._random.randint(-1, 2))
        if victim is not None and name == "attempt":
            return victim.attempt + self._random.randint(0, 1)
        if name in ("dataset_size", "maximum"):
            return 1000
        if name in ("total_batch_size", "total"):
            return 64
        return self._random.choice(_SMALL)

    def _text(self, name: str, is_extreme: bool, victim: Known | None) -> bytes:
        if is_extreme:
            return self._random.choice(_TEXTS)
        if name == "job":
            return (victim.job if victim else self._random.choice(self.jobs)).encode()
        return self._random.choice(_WORDS.get(name, (b"a", b"b", b"")))

    def _identity(self, victim: Known | None) -> Fields:
        if victim is not None and victim.workers:
            worker, incarnation = self._random.choice(victim.workers)
            names = (victim.job, worker, incarnation)
        else:
            name = f"mallory-{self._random.randrange(8)}"
            names = (self._random.choice(self.jobs), name, name)
        return [(STRING, number, text.encode()) for number, text in enumerate(names, 1)]

    def _misshape(self, fields: Fields) -> None:
        """Break one rule in the fields or in a struct within them."""
        if not fields:
            return
        at = self._random.randrange(len(fields))
        kind, number, value = fields[at]
        if kind == STRUCT and self._random.random() < 0.8:
            self._misshape(value)
            return
        action = self._random.randrange(4)
        if action == 0:
            del fields[at]
        elif action == 1:
            fields.append(fields[at])
        elif action == 2:
            fields[at] = (kind, self._random.choice((0, 17, -1, 2**15 - 1)), value)
        else:
            other = self._random.choice(tuple(FORMATS))
            fields[at] = (other, number, 1.0 if other == DOUBLE else 1)

    # -- bytes

    def _call(self, kind: str, method: str, arguments: Fields) -> Input:
        data = self._message(method, _write(STRUCT, arguments))
        return Input(kind, data, self._sequence)

    def _message(self, method: str, body: bytes, kind: int = TMessageType.CALL) -> bytes:
        self._sequence = self._random.getrandbits(30)  # far from others', should a bit of it be flipped
        name = method.encode()
        head = struct.pack(">HHi", 0x8001, kind, len(name)) + name + struct.pack(">i", self._sequence)
        return codec.frame(head + body)


def _with_integers(fields: Fields, value: int) -> Fields:
    """Return the struct with `value` in each of its own i64 fields, not those of structs within."""
    return [(kind, number, value if kind == I64 else inner) for kind, number, inner in fields]


def _write(kind: int, value: Any) -> bytes:
    """Return a value's bytes in the binary protocol, as of the Thrift type `kind`; nothing is checked."""
    if kind in FORMATS:
        return struct.pack(FORMATS[kind], value)
    if kind == STRING:
        data: bytes = value
        return struct.pack(">i", len(data)) + data
    if kind == STRUCT:
        parts = [struct.pack(">bh", kind, number) + _write(kind, inner) for kind, number, inner in value]
        return b"".join(parts) + b"\0"
    if kind == MAP:
        key_kind, value_kind, pairs = value
        parts = [_write(key_kind, key) + _write(value_kind, inner) for key, inner in pairs]
        return struct.pack(">bbi", key_kind, value_kind, len(pairs)) + b"".join(parts)
    element, values = value
    return struct.pack(">bi", element, len(values)) + b"".join(_write(element, inner) for inner in values)
