"""Reading a manager's state, while the manager runs or later: for reports, and for its own restart.

A row that makes no sense costs what it holds: it is left out, with a line of log that names job and file.
"""

import contextlib
import logging
import math
import sqlite3
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from batchsize_manager.job.state import JobState, SavedMember
from batchsize_manager.storage.json_values import from_json
from batchsize_manager.storage.state_format import (
    BUSY_SECONDS,
    MOST_WORKERS,
    STATE_FILE,
    StateError,
    check_format,
    check_values,
    decoded,
    explained,
    unpack_norms,
    unseal,
)
from idl import check
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
    """One saved run of a job; a job that is started again under its old name is another run."""

    run: str  # the run's id, which no other run has
    job: str  # the job's name
    policy: str  # name of the policy that splits its batches
    state: JobState  # the job's state
    begun: float  # time of its beginning, in seconds since 1970
    ended: float | None  # time of its end, in seconds since 1970; None if it goes on
    ending: str | None  # why it ended; None if it goes on
    learned: bytes  # the policy's packed models; see `saved_models.unpack_models`


@dataclass(frozen=True, slots=True)
class SavedEvent:
    """An event in words, and its time in seconds since 1970."""

    at: float
    event: str


class StateReader:
    """A reader of a state file; see `open_state`. All methods raise `StateError` if it proves damaged."""

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

    def last_run(self, job: str, run: str | None) -> tuple[str, int] | None:
        """Return a run of a job, by default its last, and the number of its members; None without one."""
        rows = self._rows(
            "SELECT run, (SELECT count(*) FROM members WHERE members.run = runs.id) FROM runs "
            "WHERE job = ?1 AND (?2 IS NULL OR run = ?2) AND typeof(run) = 'text' ORDER BY id DESC LIMIT 1",
            job,
            run,
        )
        return rows[0] if rows else None

    def unfinished(self) -> list[SavedRun | DamagedRun]:
        """Return the runs that have not ended, or of which it is not known, the oldest first."""
        return self._runs("ended IS NULL OR ending IS NULL OR typeof(ended) != 'real'")

    def _runs(self, which: str, *values: Any) -> list[SavedRun | DamagedRun]:
        rows = self._rows(
            "SELECT run, job, policy, state, begun, ended, ending, learned FROM runs "
            f"WHERE {which} ORDER BY id",
            *values,
        )
        found: list[SavedRun | DamagedRun] = []
        for row in rows:
            try:
                found.append(self._saved_run(*row))
            except _DAMAGE as error:
                run, job = (value if isinstance(value, str) and value else None for value in row[:2])
                found.append(DamagedRun(run, job, str(error)))
        return found

    def _saved_run(
        self,
        run: str,
        job: str,
        policy: str,
        state: str,
        begun: float,
        ended: float | None,
        ending: str | None,
        learned: bytes,
    ) -> SavedRun:
        for name, text in (("run", run), ("job", job), ("policy", policy)):
            _text(name, text)
        check.number("begun", begun, -math.inf, math.inf)
        if (ended is None) != (ending is None):
            raise ValueError("it has an end without a reason, or the reverse")
        if ended is not None:
            check.number("ended", ended, -math.inf, math.inf)
        saved = replace(
            from_json(JobState, unseal(state, run, job, policy)), members=tuple(self._members(run))
        )
        policy = saved.balancing.policy if saved.balancing is not None else policy
        if not isinstance(learned, bytes):
            learned = repr(learned).encode()  # that are no models either
        return SavedRun(run, job, policy, saved, begun, ended, ending, learned)

    def _members(self, run: str) -> list[SavedMember]:
        rows = self._rows(
            "SELECT run, worker, state FROM members "
            "WHERE run = (SELECT id FROM runs WHERE run = ?) ORDER BY id",
            run,
        )
        return self._sound("members", run, _saved_member, rows)

    def records(self, run: str, first_iteration: int, limit: int) -> list[IterationRecord]:
        """Return a run's complete iterations from `first_iteration` on, `limit` at most, oldest first."""
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
            "SELECT iteration, epoch, start, total, attempt, duration, workers, measured, norms "
            "FROM iterations "
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
            iteration, epoch, start, total, attempt, duration, its_numbers, measured, norms = row
            for name, value in zip(_NUMBERS, row, strict=False):
                _count(name, value)
            check.integer("total", total, 1)
            check.number("duration", duration, 0.0, math.inf)
            if its_numbers != numbers:  # somebody has come or gone
                workers = tuple(names[n] for n in np.frombuffer(its_numbers, "<u4").tolist())
                numbers = its_numbers
            values = check_values(measured, len(workers))
            return IterationRecord(
                iteration, epoch, start, total, attempt, duration, workers, values, unpack_norms(norms)
            )

        return self._sound("iterations", run, record, rows)

    def _sound(self, what: str, run: str, make: Callable[..., _T], rows: Iterable[Any]) -> list[_T]:
        """Return the values of rows, without the damaged rows."""
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


def _saved_member(run: int, worker: str, state: str) -> SavedMember:
    member = from_json(SavedMember, unseal(state, run, worker))
    if member.worker != _text("worker", worker):
        raise ValueError(f"worker {worker!r:.80}: must be {member.worker!r}, as in its state")
    return member


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
