"""The services as a client of stock Apache Thrift declares them by hand: what a worker and an onlooker need.

Nothing of ours is imported here: this is what somebody writes who has only the .thrift files.
"""

from typing import Any

from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.protocol.TProtocol import TProtocolBase
from thrift.Thrift import TApplicationException, TMessageType, TType
from thrift.transport.TSocket import TSocket
from thrift.transport.TTransport import TFramedTransport, TTransportBase

I64 = (TType.I64, None)
DOUBLE = (TType.DOUBLE, None)
BOOL = (TType.BOOL, None)
STRING = (TType.STRING, "UTF8")
BINARY = (TType.STRING, "BINARY")
I32 = (TType.I32, None)
LISTS_OF_STRINGS = (TType.LIST, (TType.LIST, (TType.STRING, "UTF8", False), False))
OPTIONS = (TType.MAP, (TType.STRING, "UTF8", TType.DOUBLE, None, False))

Field = tuple[str, tuple[int, Any]]


class Struct:
    """Struct as the compiler generates it: a constructor, `read` and `write`."""

    thrift_spec: tuple

    def __init__(self, *values: Any, **named: Any) -> None:
        names = [entry[2] for entry in self.thrift_spec if entry]
        for name in names:
            setattr(self, name, None)
        for name, value in (*zip(names, values, strict=False), *named.items()):
            setattr(self, name, value)

    def read(self, protocol: TProtocolBase) -> None:
        """Take the fields from the wire."""
        protocol.readStruct(self, self.thrift_spec)

    def write(self, protocol: TProtocolBase) -> None:
        """Put the fields on the wire."""
        protocol.writeStruct(self, self.thrift_spec)


def struct(name: str, *fields: Field, base: type = Struct, first: int = 1) -> type:
    """A struct whose fields have the ids `first`, `first` + 1 and so on."""
    spec = [(i, kind, field, argument, None) for i, (field, (kind, argument)) in enumerate(fields, first)]
    return type(name, (base,), {"thrift_spec": (*[None] * first, *spec)})


def of(kind: type) -> tuple[int, Any]:
    """The type of a field that holds a struct."""
    return TType.STRUCT, [kind, kind.thrift_spec]


def list_of(kind: type) -> tuple[int, Any]:
    """The type of a field that holds a list of structs."""
    return TType.LIST, (*of(kind), False)


class _DeclaredError(Struct, Exception):
    message: str

    def __str__(self) -> str:
        return self.message


InvalidRequest = struct("InvalidRequest", ("message", STRING), base=_DeclaredError)
NotMember = struct("NotMember", ("message", STRING), base=_DeclaredError)
Unavailable = struct("Unavailable", ("message", STRING), base=_DeclaredError)
Unauthorised = struct("Unauthorised", ("message", STRING), base=_DeclaredError)

AuthenticateRequest = struct("AuthenticateRequest", ("job", STRING), ("token", STRING))
AuthenticateReply = struct("AuthenticateReply", ("job", STRING))

Identity = struct("Identity", ("job", STRING), ("worker", STRING), ("incarnation", STRING))
Assignment = struct(
    "Assignment", *((name, I64) for name in ("iteration", "epoch", "start", "count", "total"))
)

JobSpec = struct(
    "JobSpec",
    *(("dataset_size", I64), ("total_batch_size", I64), ("seed", I64)),
    *(("shuffle", BOOL), ("drop_last", BOOL)),
)
Bounds = struct("Bounds", ("minimum", I64), ("maximum", I64), ("granularity", I64))
JoinRequest = struct("JoinRequest", ("identity", of(Identity)), ("job", of(JobSpec)), ("bounds", of(Bounds)))
ReportRequest = struct(
    "ReportRequest",
    *(("identity", of(Identity)), ("iteration", I64), ("batch_processing_time", DOUBLE)),
    *(("waiting_time", DOUBLE), ("cpu_usage", DOUBLE), ("memory_usage", DOUBLE)),
)
Lost = struct("Lost", ("iteration", I64), ("start", I64), ("count", I64))
AssignmentReply = struct(
    "AssignmentReply",
    *(("identity", of(Identity)), ("reported_iteration", I64), ("assignment", of(Assignment))),
    *(("waited", DOUBLE), ("lost", list_of(Lost)), ("run", STRING)),
)
LeaveRequest = struct("LeaveRequest", ("identity", of(Identity)))
HistoryRequest = struct("HistoryRequest", ("job", STRING), ("first_iteration", I64), ("limit", I64))
COLUMNS = (
    *("batch_sizes", "batch_processing_times", "waiting_times"),
    *("cpu_usages", "memory_usages", "predicted_speeds"),
)
IterationRecord = struct(
    "IterationRecord",
    *((name, I64) for name in ("iteration", "epoch", "start", "total", "attempt")),
    *(("duration", DOUBLE), ("workers", I32)),
    *((name, BINARY) for name in COLUMNS),
)
History = struct(
    "History", ("run", STRING), ("workers", LISTS_OF_STRINGS), ("iterations", list_of(IterationRecord))
)
LeaveReply = struct("LeaveReply", ("identity", of(Identity)))

ParameterGroup = struct("ParameterGroup", ("elements", I64), ("options", OPTIONS))
OpenRequest = struct(
    "OpenRequest",
    *(("identity", of(Identity)), ("dtype", STRING), ("optimizer", STRING)),
    ("groups", list_of(ParameterGroup)),
)
OpenReply = struct("OpenReply", ("identity", of(Identity)), ("initialised", BOOL), ("version", I64))
InitialiseRequest = struct("InitialiseRequest", ("identity", of(Identity)), ("version", I64))
InitialiseReply = struct("InitialiseReply", ("identity", of(Identity)), ("accepted", BOOL))
PushRequest = struct(
    "PushRequest",
    *(("identity", of(Identity)), ("assignment", of(Assignment)), ("groups", list_of(ParameterGroup))),
)
PushReply = struct("PushReply", ("identity", of(Identity)), ("iteration", I64))
PullRequest = struct("PullRequest", ("identity", of(Identity)), ("version", I64))
PullReply = struct(
    "PullReply", ("identity", of(Identity)), ("version", I64), ("waited", DOUBLE), ("parameters", BINARY)
)

# method: its arguments, its reply
METHODS = {
    "authenticate": ((("request", of(AuthenticateRequest)),), AuthenticateReply),
    "join": ((("request", of(JoinRequest)),), AssignmentReply),
    "report": ((("request", of(ReportRequest)),), AssignmentReply),
    "leave": ((("request", of(LeaveRequest)),), LeaveReply),
    "history": ((("request", of(HistoryRequest)),), History),
    "open": ((("request", of(OpenRequest)),), OpenReply),
    "initialise": ((("request", of(InitialiseRequest)), ("parameters", BINARY)), InitialiseReply),
    "push": ((("request", of(PushRequest)), ("gradient", BINARY)), PushReply),
    "pull": ((("request", of(PullRequest)),), PullReply),
}


class ApacheClient:
    """Has a method for each of a service's, as compiled clients do."""

    def __init__(self, host: str, port: int) -> None:
        self._transport: TTransportBase = TFramedTransport(TSocket(host, port))
        self._transport.open()
        self._protocol = TBinaryProtocol(self._transport)
        self._sequence_id = 0

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()

    def __getattr__(self, method: str) -> Any:
        if method not in METHODS:
            raise AttributeError(method)
        return lambda *arguments: self._call(method, *arguments)

    def _call(self, method: str, *arguments: Any) -> Any:
        fields, reply = METHODS[method]
        protocol = self._protocol
        self._sequence_id += 1
        protocol.writeMessageBegin(method, TMessageType.CALL, self._sequence_id)
        struct(f"{method}_args", *fields)(*arguments).write(protocol)
        protocol.writeMessageEnd()
        self._transport.flush()
        name, kind, sequence_id = protocol.readMessageBegin()
        if kind == TMessageType.EXCEPTION:
            error = TApplicationException()
            error.read(protocol)
            protocol.readMessageEnd()
            raise error
        result = struct(
            f"{method}_result",
            ("success", of(reply)),
            *(("invalid", of(InvalidRequest)), ("not_member", of(NotMember))),
            *(("unavailable", of(Unavailable)), ("unauthorised", of(Unauthorised))),  # the manager's fourth
            first=0,
        )()
        result.read(protocol)
        protocol.readMessageEnd()
        assert (name, sequence_id) == (method, self._sequence_id)
        for exception in (result.invalid, result.not_member, result.unavailable, result.unauthorised):
            if exception is not None:
                raise exception
        return result.success
