"""Reading a manager's state, while the manager runs or later: for reports, and for its own restart.

A row that makes no sense costs what it holds: it is left out, with a line of log that names job and file.
"""

import contextlib
import json
import logging
import math
import sqlite3
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, TypeVar

from batchsize_manager.balancing import Balancing
from batchsize_manager.job.batch_sizes import BatchChange
from batchsize_manager.job.members import SavedMember
from batchsize_manager.storage.state_format import (
    BUSY_SECONDS,
    MOST_WORKERS,
    STATE_FILE,
    StateError,
    check_format,
    decoded,
    explained,
    unpack_records,
)
from idl import check
from idl.bounds import Bounds
from idl.plan import JobSpec
from idl.records import IterationRecord

log = logging.getLogger(__name__)

_T = TypeVar("_T")

_NUMBERS = ("iteration", "epoch", "start", "total", "attempt")
_MOST = 2**53  # iterations, attempts and the like, with room for more
_DAMAGE = (ValueError, TypeError, KeyError, OverflowError, RecursionError, struct.error)  # of a row's values


@dataclass(frozen=True, slots=True)
class DamagedRun:
    """A run whose row makes no sense: its id and its job's name, as far as they are sound, and the reason."""

    run: str | None
    job: str | None
    why: str


@dataclass(frozen=True, slots=True)
class SavedRun:
    """One run of a job, as it is kept: a job that is started again under its old name is another run.

    Attributes:
        run: The run's id, which no other run has.
        job: The job's name.
        spec: The data set and the batches.
        policy: Name of the last balancing policy that was written.
        mode: Mode of synchronisation; see `Synchronisation`.
        first_iteration: Number of the first iteration.
        position: Epoch and first position of that iteration's batch, where its number does not give them.
        attempt: Number of the last attempt.
        batch_changes: Changes of the size of its batches, if any.
        begun: Time of its beginning, in seconds since 1970.
        ended: Time of its end, in seconds since 1970; None if it goes on.
        ending: Why it ended; None if it goes on.
        learned: The policy's packed models; see `saved_models.unpack_models`.
        balancing: The way in which operators wanted batches to be split; None: the manager's own.
        batch_size: Samples of a whole batch, as operators wanted; None: that of `spec`.
        paused: Whether operators had paused it.
    """

    run: str
    job: str
    spec: JobSpec
    policy: str
    mode: str
    first_iteration: int
    position: tuple[int, int] | None
    attempt: int
    batch_changes: list[BatchChange]
    begun: float
    ended: float | None
    ending: str | None
    learned: bytes
    balancing: Balancing | None = None
    batch_size: int | None = None
    paused: bool = False


@dataclass(frozen=True, slots=True)
class SavedEvent:
    """An event in words, and its time in seconds since 1970."""

    at: float
    event: str


class StateReader:
    """A reader of a state file; see `open_state`. All methods raise `StateError` if it proves damaged.

    Args:
        path: The file.
        connection: A connection to the file.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self._path = path
        self._connection = connection
        connection.text_factory = decoded
        with explained(path):
            check_format(path, connection)

    def runs(self, job: str | None = None) -> list[SavedRun]:
        """Return the runs, the oldest first: of one job or all."""
        found = []
        for run in self._runs("?1 IS NULL OR job = ?1", job):
            if isinstance(run, SavedRun):
                found.append(run)
            else:
                log.warning(
                    "job %s: a run of it is damaged in %s and left out (%s)",
                    *(run.job, self._path, run.why),
                    extra={"job": run.job, "run": run.run},
                )
        return found

    def unfinished(self) -> list[SavedRun | DamagedRun]:
        """Return the runs that have not ended, or of which it is not known, the oldest first."""
        return self._runs("ended IS NULL OR ending IS NULL OR typeof(ended) != 'real'")

    def _runs(self, which: str, *values: Any) -> list[SavedRun | DamagedRun]:
        rows = self._rows(
            "SELECT run, job, spec, policy, mode, first_iteration, first_epoch, first_start, attempt, "
            "batch_changes, begun, ended, ending, learned, balancing, batch_size, paused "
            f"FROM runs WHERE {which} ORDER BY id",
            *values,
        )
        found: list[SavedRun | DamagedRun] = []
        for row in rows:
            try:
                found.append(_saved_run(*row))
            except _DAMAGE as error:
                run, job = (value if isinstance(value, str) and value else None for value in row[:2])
                found.append(DamagedRun(run, job, str(error)))
        return found

    def members(self, run: str) -> list[SavedMember]:
        """Return the members of a run, in the order of their slices, and workers that may come back."""
        rows = self._rows(
            "SELECT worker, incarnation, minimum, maximum, granularity, unreleasable, drained, device, "
            "cut_off, beats, at_once FROM members "
            "WHERE run = (SELECT id FROM runs WHERE run = ?) ORDER BY id",
            run,
        )
        return self._sound("members", run, _saved_member, rows)

    def records(self, run: str, first_iteration: int, limit: int) -> list[IterationRecord]:
        """A run's complete iterations from `first_iteration` on, `limit` at most; the oldest first."""
        while True:
            rows = self._iterations(run, "iteration >= ? ORDER BY iteration LIMIT ?", first_iteration, limit)
            found = self._records(run, rows)
            last = max((row[0] for row in rows if isinstance(row[0], int)), default=first_iteration - 1)
            if found or not first_iteration <= last < _MOST:
                return found
            first_iteration = last + 1  # all of these are damaged; there may be others

    def last_records(self, run: str, limit: int) -> list[IterationRecord]:
        """Return a run's last complete iterations, at most `limit`, oldest first."""
        rows = self._iterations(run, "TRUE ORDER BY iteration DESC LIMIT ?", limit)
        return self._records(run, rows)[::-1]

    def last_events(self, run: str, limit: int) -> list[SavedEvent]:
        """Return a run's last events, at most `limit`, oldest first."""
        rows = self._rows(
            "SELECT said, event FROM events WHERE run = (SELECT id FROM runs WHERE run = ?) "
            "ORDER BY id DESC LIMIT ?",
            run,
            limit,
        )
        return self._sound("events", run, _saved_event, rows)[::-1]

    def workers(self, run: str) -> dict[int, str]:
        """Return the names of workers by their numbers in a run's records."""
        rows = self._rows(
            "SELECT number, name FROM workers WHERE run = (SELECT id FROM runs WHERE run = ?)", run
        )
        return dict(self._sound("workers", run, _saved_worker, rows))

    def _iterations(self, run: str, which: str, *values: int) -> list[Any]:
        return self._rows(
            "SELECT iteration, epoch, start, total, attempt, duration, workers, at_once FROM iterations "
            f"WHERE run = (SELECT id FROM runs WHERE run = ?) AND {which}",
            run,
            *values,
        )

    def _records(self, run: str, rows: list[Any]) -> list[IterationRecord]:
        # Read after them: a manager that runs may have given a newcomer a number meanwhile.
        names = self.workers(run)
        numbers = b""
        workers: tuple[str, ...] = ()

        def record(*row: Any) -> IterationRecord:
            nonlocal numbers, workers
            iteration, epoch, start, total, attempt, duration, packed, at_once = row
            for name, value in zip(_NUMBERS, row, strict=False):
                _count(name, value)
            check.integer("total", total, 1)
            check.number("duration", duration, 0.0, math.inf)
            its_numbers, columns = unpack_records(packed, at_once)
            if its_numbers.tobytes() != numbers:  # somebody has come or gone
                workers = tuple(names[n] for n in its_numbers.tolist())
                numbers = its_numbers.tobytes()
            return IterationRecord(iteration, epoch, start, total, attempt, duration, workers, columns)

        return self._sound("iterations", run, record, rows)

    def _sound(self, what: str, run: str, make: Callable[..., _T], rows: Iterable[Any]) -> list[_T]:
        """Return what rows hold, but for those that are damaged."""
        found, damage = [], []
        for row in rows:
            try:
                found.append(make(*row))
            except _DAMAGE as error:
                damage.append(error)
        if damage:
            ((job,),) = self._rows("SELECT job FROM runs WHERE run = ?", run) or [(None,)]
            log.warning(
                "job %s: %d of its %s are damaged in %s and left out, such as one with %s: %s",
                *(job, len(damage), what, self._path, type(damage[0]).__name__, damage[0]),
                extra={"job": job, "run": run},
            )
        return found

    def _rows(self, query: str, *values: Any) -> list[Any]:
        with explained(self._path):
            return self._connection.execute(query, values).fetchall()


def _saved_run(
    run: str,
    job: str,
    spec: str,
    policy: str,
    mode: str,
    first_iteration: int,
    first_epoch: int | None,
    first_start: int | None,
    attempt: int,
    batch_changes: str,
    begun: float,
    ended: float | None,
    ending: str | None,
    learned: bytes,
    balancing: str | None,
    batch_size: int | None,
    paused: int,
) -> SavedRun:
    for name, text in (("run", run), ("job", job), ("policy", policy), ("mode", mode)):
        _text(name, text)
    _count("first_iteration", first_iteration)
    _count("attempt", attempt)
    check.number("begun", begun, -math.inf, math.inf)
    if (ended is None) != (ending is None):
        raise ValueError("it has an end without a reason, or the reverse")
    if ended is not None:
        check.number("ended", ended, -math.inf, math.inf)
    data = JobSpec(**json.loads(spec))
    position = None
    if (first_epoch, first_start) != (None, None):
        position = _count("first_epoch", first_epoch), _count("first_start", first_start)
    changes = [BatchChange(*change) for change in json.loads(batch_changes)]
    for change in changes:
        for number in astuple(change):
            _count("batch_changes", number)
        check.integer("batch_changes", change.size, 1, data.dataset_size)
    if batch_size is not None:
        check.integer("batch_size", batch_size, 1, data.dataset_size)
    return SavedRun(
        run,
        job,
        data,
        policy,
        mode,
        first_iteration,
        position,
        attempt,
        changes,
        begun,
        ended,
        ending,
        learned if isinstance(learned, bytes) else repr(learned).encode(),  # that are no models either
        Balancing(**json.loads(balancing)) if balancing is not None else None,
        batch_size,
        bool(check.integer("paused", paused, 0, 1)),
    )


def _saved_member(
    worker: str,
    incarnation: str,
    least: int,
    most: int,
    granularity: int,
    unreleasable: int,
    drained: int,
    device: str,
    cut_off: int,
    beats: int,
    at_once: int,
) -> SavedMember:
    _text("worker", worker)
    _text("incarnation", incarnation)
    for name, limit in (("minimum", least), ("maximum", most), ("granularity", granularity)):
        check.integer(name, limit, 1)
    marks = (unreleasable, drained, beats, cut_off)
    for name, mark in zip(("unreleasable", "drained", "beats", "cut_off"), marks, strict=True):
        check.integer(name, mark, 0, 1)
    _text("device", device, least=0)
    bounds = Bounds(least, most, granularity, check.integer("at_once", at_once, 1))
    is_unreleasable, is_drained, sends_beats, is_cut_off = map(bool, marks)
    return SavedMember(
        worker, incarnation, bounds, is_unreleasable, is_drained, device, sends_beats, is_cut_off
    )


def _saved_event(said: float, event: str) -> SavedEvent:
    return SavedEvent(check.number("said", said, -math.inf, math.inf), _text("event", event, least=0))


def _count(name: str, value: Any) -> int:
    return check.integer(name, value, 0, _MOST)


def _text(name: str, value: Any, least: int = 1) -> str:
    if not isinstance(value, str) or len(value) < least:
        raise ValueError(f"{name} {value!r:.80}: must be a text of at least {least} characters")
    return value


def _saved_worker(number: int, name: str) -> tuple[int, str]:
    return check.integer("number", number, 0, MOST_WORKERS - 1), _text("name", name)


@contextlib.contextmanager
def open_state(folder: Path) -> Iterator[StateReader]:
    """Open a manager's state for reading, also while the manager runs.

    Args:
        folder: The folder given to the manager as `--state`.

    Raises:
        StateError: There is no state, or none that this version can read.
    """
    path = folder / STATE_FILE
    if not path.exists():
        raise StateError(f"{path}: there is no such file; a manager with --state {folder} makes it")
    with explained(path):
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS)
    with contextlib.closing(connection):
        yield StateReader(path, connection)
