"""Reading a manager's state, while the manager runs or later: for reports, and for its own restart."""

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batchsize_manager.balancing import Balancing
from batchsize_manager.job.batch_sizes import BatchChange
from batchsize_manager.job.members import SavedMember
from batchsize_manager.storage.state_format import (
    BUSY_SECONDS,
    STATE_FILE,
    StateError,
    check_format,
    explained,
    unpack_records,
)
from idl.bounds import Bounds
from idl.plan import JobSpec
from idl.records import IterationRecord


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
        with explained(path):
            self._version = check_format(path, connection)

    def runs(self, job: str | None = None, unfinished: bool = False) -> list[SavedRun]:
        """Return the runs, the oldest first: of one job or all, unfinished ones or all."""
        wanted = self._since(2, "balancing, batch_size, paused")
        rows = self._rows(
            "SELECT run, job, spec, policy, mode, first_iteration, first_epoch, first_start, attempt, "
            f"batch_changes, begun, ended, ending, learned, {wanted} "
            "FROM runs WHERE (?1 IS NULL OR job = ?1) AND (ended IS NULL OR NOT ?2) ORDER BY id",
            job,
            unfinished,
        )
        with explained(self._path):
            return [_saved_run(*row) for row in rows]

    def members(self, run: str) -> list[SavedMember]:
        """Return the members of a run, in the order of their slices, and workers that may come back."""
        # By the format that added them.
        columns = {2: "drained", 3: "device, cut_off", 4: "beats", 5: "at_once"}
        later = ", ".join(self._since(version, names) for version, names in columns.items())
        rows = self._rows(
            f"SELECT worker, incarnation, minimum, maximum, granularity, unreleasable, {later} "
            "FROM members WHERE run = (SELECT id FROM runs WHERE run = ?) ORDER BY id",
            run,
        )
        with explained(self._path):
            return [
                SavedMember(
                    worker,
                    incarnation,
                    Bounds(least, most, granularity, at_once or 1),
                    bool(unreleasable),
                    bool(drained),
                    device or "",
                    bool(beats),
                    bool(cut_off),
                )
                for (
                    worker,
                    incarnation,
                    least,
                    most,
                    granularity,
                    unreleasable,
                    drained,
                    device,
                    cut_off,
                    beats,
                    at_once,
                ) in rows
            ]

    def records(self, run: str, first_iteration: int, limit: int) -> list[IterationRecord]:
        """A run's complete iterations from `first_iteration` on, `limit` at most; the oldest first."""
        return self._records(run, "iteration >= ? ORDER BY iteration LIMIT ?", first_iteration, limit)

    def last_records(self, run: str, limit: int) -> list[IterationRecord]:
        """Return a run's last complete iterations, at most `limit`, oldest first."""
        return self._records(run, "TRUE ORDER BY iteration DESC LIMIT ?", limit)[::-1]

    def last_events(self, run: str, limit: int) -> list[SavedEvent]:
        """Return a run's last events, at most `limit`, oldest first."""
        rows = self._rows(
            "SELECT said, event FROM events WHERE run = (SELECT id FROM runs WHERE run = ?) "
            "ORDER BY id DESC LIMIT ?",
            run,
            limit,
        )
        return [SavedEvent(*row) for row in rows][::-1]

    def _records(self, run: str, which: str, *values: int) -> list[IterationRecord]:
        rows = self._rows(
            "SELECT iteration, epoch, start, total, attempt, duration, workers, "
            f"{self._since(5, 'at_once')} FROM iterations "
            f"WHERE run = (SELECT id FROM runs WHERE run = ?) AND {which}",
            run,
            *values,
        )
        # Read after them: a manager that runs may have given a newcomer a number meanwhile.
        names = dict(
            self._rows(
                "SELECT number, name FROM workers WHERE run = (SELECT id FROM runs WHERE run = ?)", run
            )
        )
        found: list[IterationRecord] = []
        numbers = b""
        workers: tuple[str, ...] = ()
        with explained(self._path):
            for iteration, epoch, start, total, attempt, duration, packed, at_once in rows:
                its_numbers, columns = unpack_records(packed, at_once)
                if its_numbers.tobytes() != numbers:  # somebody has come or gone
                    numbers, workers = its_numbers.tobytes(), tuple(names[n] for n in its_numbers.tolist())
                found.append(
                    IterationRecord(iteration, epoch, start, total, attempt, duration, workers, columns)
                )
        return found

    def _since(self, version: int, columns: str) -> str:
        """Return columns that a format has added; in a file of an earlier format, as many NULLs."""
        return columns if self._version >= version else ", ".join("NULL" for _ in columns.split(","))

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
    paused: int | None,
) -> SavedRun:
    position = None if first_epoch is None or first_start is None else (first_epoch, first_start)
    changes = [BatchChange(*change) for change in json.loads(batch_changes)]
    return SavedRun(
        run,
        job,
        JobSpec(**json.loads(spec)),
        policy,
        mode,
        first_iteration,
        position,
        attempt,
        changes,
        begun,
        ended,
        ending,
        learned,
        Balancing(**json.loads(balancing)) if balancing is not None else None,
        batch_size,
        bool(paused),
    )


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
