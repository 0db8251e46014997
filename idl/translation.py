"""Translation of the wire contract's values to Thrift structs, and back: the only place that knows both.

`wire_...` makes a struct of a value, `read_...` a value of a struct. The latter check each field: an error
names the value and what is allowed. Thrift leaves a field that is missing, or that was sent with another
type, as None.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, get_args, get_type_hints

import idl
from idl import check
from idl.bounds import Bounds
from idl.costs import Costs
from idl.errors import InvalidRequestError
from idl.exchange import EXCHANGES, PARAMETER_SERVER, Seat
from idl.gradient_norms import GradientNorms, StepNorms
from idl.layout import Group, Part, Tensor
from idl.plan import Assignment, JobSpec, Resume, Scaling
from idl.records import COLUMNS, IterationRecord, Report, spare_last
from idl.synchronisation import Synchronisation

T = TypeVar("T")

_MAX_GRANULARITY = 2**48  # samples; all members' together fit into 64 bits
_MAX_GROUPS = 10_000
_MAX_RUNS = 16  # of costs in a report
_MAX_MILESTONES = 10_000
_MOST_PROGRESS = 2.0**62
_MAX_TENSORS = 100_000
_MAX_DIMENSIONS = 64
_MAX_TENSOR_NAME = 1000  # characters: nested layers have long ones


# -- assignments


def wire_assignment(value: Assignment) -> Any:
    """Make an `Assignment` of common.thrift."""
    scaling = value.scaling
    return idl.common.Assignment(
        value.iteration,
        value.epoch,
        value.start,
        value.count,
        value.total,
        value.attempt or None,
        value.batch_start,
        None if value.at_once == 1 else value.at_once,
        *((scaling.size, scaling.gain, scaling.progress) if scaling is not None else ()),
    )


def read_assignment(struct: Any) -> Assignment:
    """Read an `Assignment` of common.thrift.

    Raises:
        InvalidRequestError: The struct, or a field, is missing or out of its range.
    """
    if struct is None:
        raise InvalidRequestError("assignment is missing")
    total = check.integer("total", struct.total, 1)
    return Assignment(
        check.integer("iteration", struct.iteration, 0),
        check.integer("epoch", struct.epoch, 0),
        check.integer("start", struct.start, 0),
        check.integer("count", struct.count, 0, total),
        total,
        0 if struct.attempt is None else check.integer("attempt", struct.attempt, 0),
        _optional("batch_start", struct.batch_start, 0),
        1 if struct.at_once is None else check.integer("at_once", struct.at_once, 1),
        _read_scaling(struct) if struct.size is not None else None,
    )


def _read_scaling(struct: Any) -> Scaling:
    return Scaling(
        check.integer("size", struct.size, 1),
        check.number("gain", struct.gain, 0.0, _MOST_PROGRESS),
        check.number("progress", struct.progress, 0.0, _MOST_PROGRESS),
    )


def wire_place(value: tuple[int, int] | None) -> Any:
    """Make a `Place` of (epoch, position in it); None of None."""
    return None if value is None else idl.common.Place(*value)


def read_place(struct: Any) -> tuple[int, int] | None:
    """Read a `Place`: (epoch, position in it); None where it was left out.

    Raises:
        InvalidRequestError: A field is missing or out of its range.
    """
    if struct is None:
        return None
    return check.integer("place.epoch", struct.epoch, 0), check.integer("place.start", struct.start, 0)


def wire_lost(value: Assignment) -> Any:
    """Make a `Lost` of a slice whose worker has gone."""
    return idl.batchsize_manager.Lost(value.iteration, value.start, value.count, value.total)


# -- how workers wait for each other


def read_exchange(value: Any) -> str:
    """Read the way in which a worker exchanges gradients; None means a parameter server.

    Raises:
        InvalidRequestError: There is no such way.
    """
    if value is None:
        return PARAMETER_SERVER
    exchange = check.text("exchange", value)
    if exchange not in EXCHANGES:
        raise InvalidRequestError(f"exchange {exchange!r}: must be one of {', '.join(EXCHANGES)}")
    return exchange


def wire_seat(value: Seat) -> Any:
    """Make a `Group`."""
    return idl.batchsize_manager.Group(
        value.rank,
        value.size,
        value.store,
        value.source,
        value.lacks or None,
        value.keep or None,
        value.manager,
    )


def read_seat(struct: Any) -> Seat:
    """Read a `Group` (InvalidRequestError: a value is not allowed)."""
    try:
        lacks, keep = bool(struct.lacks), bool(struct.keep)
        return Seat(struct.rank, struct.size, struct.store, struct.source, lacks, keep, struct.manager)
    except (TypeError, ValueError) as error:
        raise InvalidRequestError(f"group: {error}") from error


def wire_synchronisation(value: Synchronisation) -> Any:
    """Make a `Synchronisation`; None for plain bsp, so that workers need not know of modes."""
    if value == Synchronisation():
        return None
    return idl.common.Synchronisation(
        value.mode, value.staleness, value.replicas_to_aggregate, value.exact or None
    )


def read_synchronisation(struct: Any) -> Synchronisation:
    """Read a `Synchronisation`; None means bsp.

    Raises:
        InvalidRequestError: There is no such mode, or a number is out of its range.
    """
    if struct is None:
        return Synchronisation()
    try:
        return Synchronisation(
            check.text("mode", struct.mode),
            _optional("staleness", struct.staleness, 0),
            _optional("replicas_to_aggregate", struct.replicas_to_aggregate, 1),
            bool(struct.exact),
        )
    except ValueError as error:
        raise InvalidRequestError(str(error)) from error


# -- what is trained on, and by whom


def wire_spec(value: JobSpec) -> Any:
    """Make a `JobSpec`."""
    fields = _fields(value)
    samples = [list(numbers) for numbers in fields.pop("samples")]
    schedule = dict(fields.pop("milestones"))
    return idl.batchsize_manager.JobSpec(schedule=schedule or None, samples=samples or None, **fields)


def read_spec(struct: Any) -> JobSpec:
    """Read a `JobSpec` (InvalidRequestError: a field is missing or out of its range)."""
    schedule = getattr(struct, "schedule", None) or {}
    if len(schedule) > _MAX_MILESTONES:
        raise InvalidRequestError(
            f"schedule: has {len(schedule)} sizes, but at most {_MAX_MILESTONES} are allowed"
        )
    spec = _read(struct, JobSpec, milestones=(), samples=())
    samples = tuple(
        tuple(check.number("samples", number, 0.0, 1e308) for number in _list("samples", numbers, 0, 64))
        for numbers in _list("samples", list(spec.samples), 0, 64)
    )
    try:
        return dataclasses.replace(spec, milestones=tuple(sorted(schedule.items())), samples=samples)
    except ValueError as error:
        raise InvalidRequestError(str(error)) from error


def wire_bounds(value: Bounds) -> Any:
    """Make a worker's `Bounds`."""
    at_once = None if value.at_once == 1 else value.at_once
    return idl.batchsize_manager.Bounds(value.minimum, value.maximum, value.granularity, at_once)


def read_bounds(struct: Any) -> Bounds:
    """Read a worker's `Bounds` (InvalidRequestError: a field is missing or out of its range)."""
    bounds = _read(struct, Bounds, at_once=1)
    check.integer("granularity", bounds.granularity, 1, _MAX_GRANULARITY)
    return bounds


def wire_resume(value: Resume, learned_bytes: int) -> Any:
    """Make a `Resume`, with the length in bytes of the models that follow it."""
    epoch, start = value.position or (None, None)
    return idl.batchsize_manager.Resume(
        iteration=value.iteration,
        epoch=epoch,
        start=start,
        total_batch_size=value.total_batch_size,
        learned_bytes=learned_bytes or None,
        progress=value.progress,
    )


def read_resume(struct: Any, dataset_size: int) -> Resume:
    """Read a `Resume`; None means a job that begins.

    Args:
        struct: The Thrift struct, or None.
        dataset_size: Samples of the job's data set.

    Raises:
        InvalidRequestError: A field is missing or out of its range.
    """
    if struct is None:
        return Resume()
    position = None
    if struct.epoch is not None or struct.start is not None:
        epoch = check.integer("resume.epoch", struct.epoch, 0)
        position = epoch, check.integer("resume.start", struct.start, 0, dataset_size - 1)
    return Resume(
        check.integer("resume.iteration", struct.iteration, 0),
        position,
        _optional("resume.total_batch_size", struct.total_batch_size, 1, dataset_size),
        None
        if struct.progress is None
        else check.number("resume.progress", struct.progress, 0.0, _MOST_PROGRESS),
    )


# -- reports and records


def wire_report(identity: Any, report: Report, known: int | None) -> Any:
    """Make a `ReportRequest` of a worker that has assignments up to iteration `known`, if it plans ahead."""
    costs = [idl.batchsize_manager.Costs(one.epoch, one.start, one.values) for one in report.costs]
    fields = _fields(report) | {"norms": wire_norms(report.norms), "costs": costs or None}
    return idl.batchsize_manager.ReportRequest(identity=identity, known=known, **fields)


def read_report(request: Any) -> Report:
    """Read the report in a `ReportRequest` (InvalidRequestError: a field is missing or out of its range)."""
    return Report(*[read(getattr(request, name)) for name, read in _REPORTED])


def wire_norms(norms: StepNorms | None) -> Any:
    """Make a `GradientNorms` of common.thrift; None for None."""
    if norms is None:
        return None
    own = norms.norms
    return idl.common.GradientNorms(norms.iteration, *dataclasses.astuple(own))


def read_norms(struct: Any) -> StepNorms | None:
    """Read a `GradientNorms`; None for None (InvalidRequestError: a field is missing or out of its range)."""
    if struct is None:
        return None
    samples = check.integer("norms.samples", struct.samples, 1)
    weight = None if struct.weight is None else check.number("norms.weight", struct.weight, 0, math.inf)
    return StepNorms(
        check.integer("norms.iteration", struct.iteration, 0),
        GradientNorms(
            check.integer("norms.contributions", struct.contributions, 1 if weight is None else 0, samples),
            samples,
            check.number("norms.weighted", struct.weighted, 0, math.inf),
            check.number("norms.squared", struct.squared, 0, math.inf),
            weight,
        ),
    )


def _read_costs(structs: Any) -> tuple[Costs, ...]:
    told = []
    for one in () if structs is None else _list("costs", structs, 0, _MAX_RUNS):
        if type(one.values) is not bytes or len(one.values) % 4:
            raise InvalidRequestError("costs: values must be bytes, four for each sample")
        epoch, start = check.integer("costs.epoch", one.epoch, 0), check.integer("costs.start", one.start, 0)
        told.append(Costs(epoch, start, one.values))
    return tuple(told)


def _reader(name: str, hint: Any) -> Callable[[Any], Any]:
    """Return the function that reads a field of a report, by the field's type and range."""
    kind, allowed = get_args(hint)
    low, high = allowed.least, allowed.most
    if kind is int:
        return lambda value: check.integer(name, value, low)
    if kind is float:
        return lambda value: check.number(name, value, low, high)
    if int in get_args(kind):
        return lambda value: None if value is None else check.integer(name, value, low)
    if Costs in get_args(kind):
        return _read_costs
    if StepNorms in get_args(kind):
        return read_norms
    if float in get_args(kind):
        return lambda value: None if value is None else check.number(name, value, low, high)
    return lambda value: None if value is None else check.text(name, value)


_REPORTED = [
    (name, _reader(name, hint)) for name, hint in get_type_hints(Report, include_extras=True).items()
]


_SPARED = [column for column in COLUMNS if column.measured.spared]


def wire_history(run: str, records: Iterable[IterationRecord]) -> Any:
    """Make a `History`, the answer to `history`."""
    numbers: dict[tuple[str, ...], int] = {}  # of the lists of workers
    columns: dict[str, bytes | None]
    iterations = []
    for record in records:
        columns = {column.many: record.column(column.name).tobytes() for column in COLUMNS}
        for column in _SPARED:
            if columns[column.many] == column.default * len(record.workers):
                columns[column.many] = None
        iterations.append(
            idl.batchsize_manager.IterationRecord(
                record.iteration,
                record.epoch,
                record.start,
                record.total,
                record.attempt,
                record.duration,
                numbers.setdefault(record.workers, len(numbers)),
                norms=wire_norms(record.norms),
                **columns,
            )
        )
    return idl.batchsize_manager.History(run, [list(workers) for workers in numbers], iterations)


def read_history(struct: Any) -> tuple[str, list[IterationRecord]]:
    """Read a `History`: the run's id, and its records; those of the same workers share a tuple of names.

    Raises:
        InvalidRequestError: A field is missing or out of its range, or a column has another length.
    """
    run = check.text("run", struct.run)
    names = [tuple(workers) for workers in struct.workers or ()]
    records = []
    for one in struct.iterations or ():
        number = check.integer("iteration", one.iteration, 0)
        workers = names[check.integer("workers", one.workers, 0, len(names) - 1)]
        columns = [
            getattr(one, c.many) or (c.default * len(workers) if c.measured.spared else b"") for c in COLUMNS
        ]
        if any(len(column) != 8 * len(workers) for column in columns):
            raise InvalidRequestError(
                f"iteration {number}: each column must have 8 bytes for each of {len(workers)} workers, "
                f"not {[len(column) for column in columns]}"
            )
        records.append(
            IterationRecord(
                number,
                check.integer("epoch", one.epoch, 0),
                check.integer("start", one.start, 0),
                check.integer("total", one.total, 1),
                check.integer("attempt", one.attempt, 0),
                check.number("duration", one.duration, 0, math.inf),
                workers,
                spare_last(b"".join(columns), len(workers)),
                read_norms(one.norms),
            )
        )
    return run, records


# -- layouts


def wire_groups(groups: Sequence[Group], bounds: tuple[int, int]) -> list[Any]:
    """Make the `ParameterGroup`s of the parts of these groups that lie within a shard's bounds."""
    parts, position = [], 0
    for group in groups:
        begin, end = max(bounds[0], position), min(bounds[1], position + group.elements)
        elements = max(0, end - begin)
        parts.append(
            idl.parameter_server.ParameterGroup(
                elements, group.options, group.statistics or None, group.number
            )
        )
        position += group.elements
    return parts


def read_groups(structs: Any) -> tuple[Group, ...]:
    """Read `ParameterGroup`s (InvalidRequestError: a field is missing or out of its range)."""
    groups = []
    for struct in _list("groups", structs, 1, _MAX_GROUPS):
        elements = check.integer("elements", struct.elements, 0, 2**40)
        options = {
            check.text("option", key): check.number(f"option {key}", value, -1e30, 1e30)
            for key, value in (struct.options or {}).items()
        }
        number = None if struct.number is None else check.integer("number", struct.number, 0, _MAX_GROUPS)
        groups.append(Group(elements, options, bool(struct.statistics), number))
    return tuple(groups)


def wire_part(value: Part) -> Any:
    """Make a `Part`."""
    return idl.parameter_server.Part(value.shard, value.shards, value.first)


def read_part(struct: Any) -> Part | None:
    """Read a `Part`; None where it was left out.

    Raises:
        InvalidRequestError: A field is missing or out of its range.
    """
    if struct is None:
        return None
    shards = check.integer("part, shards", struct.shards, 1)
    return Part(
        check.integer("part, shard", struct.shard, 0, shards - 1),
        shards,
        check.integer("part, first", struct.first, 0),
    )


def wire_tensors(tensors: Sequence[Tensor]) -> list[Any]:
    """Make `Tensor`s."""
    return [idl.parameter_server.Tensor(t.name, list(t.shape), t.dtype) for t in tensors]


def read_tensors(structs: Any) -> tuple[Tensor, ...]:
    """Read `Tensor`s; None means that there are none.

    Raises:
        InvalidRequestError: A field is missing or out of its range.
    """
    tensors = []
    for number, struct in enumerate(_list("tensors", structs, 1, _MAX_TENSORS) if structs else ()):
        where = f"tensor {number}"
        name = "" if struct.name == "" else check.text(f"{where}, name", struct.name, _MAX_TENSOR_NAME)
        shape = _list(f"{where}, shape", struct.shape, 0, _MAX_DIMENSIONS)
        sizes = tuple(check.integer(f"{where}, shape", size, 0, 2**40) for size in shape)
        tensors.append(Tensor(name, sizes, check.text(f"{where}, dtype", struct.dtype)))
    return tuple(tensors)


# -- within


def _fields(value: Any) -> dict[str, Any]:
    """Return a dataclass's fields by name, nested dataclasses as they are."""
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def _read(struct: Any, into: type[T], **left_out: Any) -> T:
    """Read a struct as the dataclass that has the same fields and checks their ranges.

    Args:
        into: The dataclass.
        left_out: The values of fields that may be left out.
    """
    fields = dataclasses.fields(into)  # type: ignore[arg-type]
    values = {field.name: getattr(struct, field.name, None) for field in fields}
    values |= {name: value for name, value in left_out.items() if values[name] is None}
    missing = [f.name for f in fields if values[f.name] is None and f.default is not None]
    if missing:
        raise InvalidRequestError(f"{into.__name__}: {missing[0]} is missing or not of its type")
    try:
        return into(**values)
    except ValueError as error:
        raise InvalidRequestError(str(error)) from error


def _optional(name: str, value: Any, low: int, high: int = 2**62) -> int | None:
    return None if value is None else check.integer(name, value, low, high)


def _list(name: str, value: Any, low: int, high: int) -> list[Any]:
    if type(value) is not list or not low <= len(value) <= high:
        raise InvalidRequestError(f"{name}: must be a list of {low} to {high}")
    return value
