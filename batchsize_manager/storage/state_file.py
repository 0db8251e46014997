"""The file in which a manager keeps its jobs, as it is written: SQLite in WAL mode.

This module knows SQL, and neither threads nor jobs: changes go in, `state_reader` reads their sum.
"""

import contextlib
import logging
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from batchsize_manager.job.state import JobState, SavedMember
from batchsize_manager.learning.saved_models import pack_models
from batchsize_manager.storage.changes import (
    Begun,
    Change,
    Completed,
    Ended,
    Learned,
    Logged,
    Rewound,
    Saved,
)
from batchsize_manager.storage.json_values import to_json
from batchsize_manager.storage.state_copies import delete_copies, repairs, write_copy
from batchsize_manager.storage.state_format import (
    BUSY_SECONDS,
    MOST_WORKERS,
    check_format,
    check_pages,
    create_tables,
    decoded,
    explained,
    pack_norms,
    seal,
)
from batchsize_manager.storage.state_reader import StateReader

log = logging.getLogger(__name__)

_CHECKED_BYTES = 2**28  # a file up to this size is checked when it is opened, which takes about a second
_PRUNED_AT_ONCE = 500  # iterations
_SHORTENED = 0.95  # of the limit, so that a run is not shortened after each iteration
_EVENTS = 10_000  # of a run that are kept, at least; a twentieth more is there before the oldest go
_OF_A_RUN = ("iterations", "members", "workers", "events")  # tables that refer to a run
_WAL_BYTES = 2**26  # to which the log is cut after it has grown


@dataclass(frozen=True, slots=True)
class Refused:
    """A change that cannot be written, the name of its job, if that is known, and the reason."""

    change: Change
    job: str | None
    why: str


class StateFile:
    """A state file open for writing, by one thread at a time, in one process alone.

    Args:
        path: The file, which is made if there is none.

    Raises:
        StateError: The file is damaged, of another format, another program's, or cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self._ids: dict[str, int] = {}  # row ids by run
        self._numbers: dict[str, dict[str, int]] = {}  # numbers of workers, by run
        # Members and their rows' ids as in the file, by run.
        self._members: dict[str, dict[tuple[str, str, bool], tuple[int, SavedMember]]] = {}
        self._sizes: dict[str, int] = {}  # bytes of workers' records, by run that was written to
        self._events: dict[str, int] = {}  # events of a run that was written to, about
        self._owners: dict[str, tuple[str, str]] = {}  # job and policy of a run that was written to
        self._known: tuple[dict[str, Any], ...] = (
            self._ids,
            self._owners,
            self._numbers,
            self._members,
            self._sizes,
            self._events,
        )
        with explained(path):
            self._connection = sqlite3.connect(
                path, isolation_level=None, check_same_thread=False, timeout=BUSY_SECONDS
            )
            try:
                self._prepare(path)
            except BaseException:
                self._connection.close()
                raise
        self.reader = StateReader(path, self._connection)  # a reader of the same file

    def _prepare(self, path: Path) -> None:
        execute = self._connection.execute
        new = not execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if new:
            execute("PRAGMA auto_vacuum=INCREMENTAL")
        else:
            check_format(path, self._connection)
            if path.stat().st_size <= _CHECKED_BYTES and not check_pages(self._connection):
                with contextlib.suppress(sqlite3.IntegrityError):  # rows that are damaged have one key
                    execute("REINDEX")
                    log.warning("%s: an index was damaged, and is made again from its table", path)
        execute("PRAGMA journal_mode=WAL")
        execute("PRAGMA synchronous=NORMAL")  # a crash of the machine loses little that was committed
        execute(f"PRAGMA journal_size_limit={_WAL_BYTES}")
        if new:  # else nothing is written unless it is damaged: a manager can be started on a full disk
            with self._transaction():
                create_tables(self._connection)
        else:
            self._mend(path)

    def _mend(self, path: Path) -> None:
        """Write rows that are damaged again, where their copies are sound, and the reverse."""
        self._connection.text_factory = decoded
        wanted = list(repairs(self._connection))
        if wanted:
            with self._transaction():
                for repair in wanted:
                    self._connection.execute(repair.statement, repair.values)
        for notice in filter(None, (repair.notice for repair in wanted)):
            log.warning("%s: %s", path, notice)

    def close(self) -> None:
        """Close the file; applied changes stay."""
        self._connection.close()

    def apply(self, changes: Sequence[Change]) -> list[Refused]:
        """Write changes, all that can be written or none.

        Returns:
            The changes that cannot be written whatever the disk does; they are left out.

        Raises:
            sqlite3.Error: The file cannot be written now, or is damaged; its content is as before.
        """
        refused = []
        begins = any(isinstance(change, Begun) for change in changes)
        try:
            with self._flushed() if begins else contextlib.nullcontext(), self._transaction():
                for change in changes:
                    self._connection.execute("SAVEPOINT change")
                    try:
                        self._apply(change)
                    except Exception as error:
                        if _is_of_the_file(error):
                            raise
                        self._connection.execute("ROLLBACK TO change")
                        self._forget()
                        refused.append(Refused(change, self._job(change), f"{type(error).__name__}: {error}"))
                    self._connection.execute("RELEASE change")
        except BaseException:
            self._forget()
            raise
        return refused

    def _forget(self) -> None:
        """Empty the caches of the file's content: they may have changes that were not written."""
        for known in self._known:
            known.clear()

    def is_longer(self, nbytes: float) -> bool:
        """Return whether the iterations of a run that was written to take more than `nbytes` bytes."""
        return max(self._sizes.values(), default=0) > nbytes

    def shorten(self, nbytes: float) -> None:
        """Delete some of the oldest iterations of a run that `is_longer`.

        Raises:
            sqlite3.Error: The file cannot be written now, or is damaged; its content is as before.
        """
        run = next(run for run, size in self._sizes.items() if size > nbytes)
        number = self._id(run)
        rows = self._connection.execute(
            "SELECT iteration, length(workers) + length(measured) FROM iterations WHERE run = ? "
            "ORDER BY iteration LIMIT ?",
            (number, _PRUNED_AT_ONCE),
        )
        excess, last = self._sizes[run] - _SHORTENED * nbytes, -1
        for iteration, size in rows.fetchall():
            if excess <= 0:
                break
            last, excess = iteration, excess - size
        with self._transaction():
            self._connection.execute(
                "DELETE FROM iterations WHERE run = ? AND iteration <= ?", (number, last)
            )
        self._sizes[run] = self._size(number)
        self._vacuum()

    def prune(self, runs: int, oldest: float) -> bool:
        """Delete a part of the ended runs that are not kept any longer.

        Args:
            runs: Number of ended runs that are kept, the latest.
            oldest: Time in seconds since 1970; runs that ended before are deleted in any case.

        Returns:
            Whether there may be more to delete.

        Raises:
            sqlite3.Error: The file cannot be written now, or is damaged; its content is as before.
        """
        execute = self._connection.execute
        row = execute(
            "SELECT id, run FROM runs WHERE ended IS NOT NULL AND (ended < ? OR id NOT IN "
            "(SELECT id FROM runs WHERE ended IS NOT NULL ORDER BY ended DESC, id DESC LIMIT ?)) LIMIT 1",
            (oldest, runs),
        ).fetchone()
        if row is None:
            return False
        number, run = row
        with self._transaction():
            deleted = execute(
                "DELETE FROM iterations WHERE rowid IN (SELECT rowid FROM iterations WHERE run = ? LIMIT ?)",
                (number, _PRUNED_AT_ONCE),
            ).rowcount
            if deleted < _PRUNED_AT_ONCE:
                self._delete_rest(number)
                execute("DELETE FROM copies WHERE of = 'runs' AND id = ?", (number,))
                execute("DELETE FROM runs WHERE id = ?", (number,))
        self._vacuum()
        for known in self._known:
            known.pop(run, None)
        return True

    def _vacuum(self) -> None:
        """Give the room of deleted rows back to the disk."""
        # `execute` would take the first step alone.
        self._connection.executescript("PRAGMA incremental_vacuum")

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:  # some errors have rolled back already
                self._connection.execute("ROLLBACK")
            raise

    @contextlib.contextmanager
    def _flushed(self) -> Iterator[None]:
        """Have what is committed within the context outlive the machine: a lost job has no workers."""
        self._connection.execute("PRAGMA synchronous=FULL")
        try:
            yield
        finally:
            self._connection.execute("PRAGMA synchronous=NORMAL")

    def _apply(self, change: Change) -> None:
        execute = self._connection.execute
        match change:
            case Begun(run, job, policy, state, at):
                execute(
                    "INSERT INTO runs (run, job, policy, state, begun) VALUES (?, ?, ?, '', ?)",
                    (run, job, policy, at),
                )
                self._delete_rest(self._id(run))  # of an earlier one with this id, whose row was lost
                self._set_state(run, state)
            case Saved(run, state):
                self._set_state(run, state)
            case Completed(run, record, at):
                number = self._id(run)
                workers = np.array(self._number_workers(run, record.workers), "<u4").tobytes()
                place = (record.attempt, record.epoch, record.start, record.total)
                norms = pack_norms(record.norms)
                execute(
                    "INSERT OR REPLACE INTO iterations VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                    (number, record.iteration, *place, record.duration, at, workers, record.values, norms),
                )
                if run not in self._sizes:
                    self._sizes[run] = self._size(number)
                else:
                    # Too much, where the iteration was there before.
                    self._sizes[run] += len(workers) + len(record.values)
            case Rewound(run, iteration):
                execute("DELETE FROM iterations WHERE run = ? AND iteration >= ?", (self._id(run), iteration))
            case Logged(run, event, at):
                execute("INSERT INTO events (run, said, event) VALUES (?, ?, ?)", (self._id(run), at, event))
                self._limit_events(run)
            case Learned(run, models):
                execute("UPDATE runs SET learned = ? WHERE id = ?", (pack_models(models), self._id(run)))
            case Ended(run, why, at):
                execute("UPDATE runs SET ended = ?, ending = ? WHERE id = ?", (at, why, self._id(run)))

    def _limit_events(self, run: str) -> None:
        """Count one more event of a run, and delete the oldest if there are too many."""
        execute, number = self._connection.execute, self._id(run)
        if run not in self._events:
            (self._events[run],) = execute("SELECT count(*) FROM events WHERE run = ?", (number,)).fetchone()
        else:
            self._events[run] += 1
        if self._events[run] > _EVENTS + _EVENTS // 20:
            execute(
                "DELETE FROM events WHERE run = ?1 AND id <= "
                "(SELECT id FROM events WHERE run = ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2)",
                (number, _EVENTS),
            )
            self._events[run] = _EVENTS

    def _job(self, change: Change) -> str | None:
        """Return the name of the job that a change is of; None if the file does not have it."""
        if isinstance(change, Begun):
            return change.job
        row = self._connection.execute("SELECT job FROM runs WHERE run = ?", (change.run,)).fetchone()
        return None if row is None else str(row[0])

    def _id(self, run: str) -> int:
        if run not in self._ids:
            row = self._connection.execute("SELECT id FROM runs WHERE run = ?", (run,)).fetchone()
            if row is None:
                raise LookupError(f"there is no run {run}")
            self._ids[run] = row[0]
        return self._ids[run]

    def _size(self, number: int) -> int:
        """Return the bytes of the workers' records of a run."""
        row = self._connection.execute(
            "SELECT total(length(workers) + length(measured)) FROM iterations WHERE run = ?", (number,)
        ).fetchone()
        return int(row[0])

    def _delete_rest(self, number: int) -> None:
        """Delete the rows that refer to a run."""
        delete_copies(self._connection, number)
        for table in _OF_A_RUN:
            self._connection.execute(f"DELETE FROM {table} WHERE run = ?", (number,))

    def _set_state(self, run: str, state: JobState) -> None:
        """Write a job's state; of its members the difference to those in the file, where newcomers come last.

        A worker that comes back gets a new row.
        """
        execute, number = self._connection.execute, self._id(run)
        if run not in self._owners:
            (self._owners[run],) = execute("SELECT job, policy FROM runs WHERE id = ?", (number,))
        owner = (run, *self._owners[run])
        row = (*owner, seal(to_json(replace(state, members=())), *owner))
        execute("UPDATE runs SET run = ?, job = ?, policy = ?, state = ? WHERE id = ?", (*row, number))
        write_copy(self._connection, "runs", number, row)
        if run not in self._members:  # the rows in the file may be damaged: write them again
            delete_copies(self._connection, number)
            execute("DELETE FROM members WHERE run = ?", (number,))
        before = self._members.get(run, {})
        after = {}
        members = {(member.worker, member.incarnation, member.cut_off): member for member in state.members}
        for key in before.keys() - members.keys():
            place, _ = before[key]
            execute("DELETE FROM members WHERE id = ?", (place,))
            execute("DELETE FROM copies WHERE of = 'members' AND id = ?", (place,))
        for key, member in members.items():
            known = before.get(key)
            if known is None or known[1] != member:
                known = self._set_member(number, member, known and known[0]), member
            after[key] = known
        self._members[run] = after

    def _set_member(self, run: int, member: SavedMember, place: int | None) -> int:
        """Write a member in the row with an id, or in a new one; return the row's id."""
        row = (run, member.worker, seal(to_json(member), run, member.worker))
        statement = "INSERT OR REPLACE INTO members VALUES (?, ?, ?, ?)"
        number = self._connection.execute(statement, (place, *row)).lastrowid
        assert number is not None
        write_copy(self._connection, "members", number, row)
        return number

    def _number_workers(self, run: str, workers: Sequence[str]) -> list[int]:
        """Return workers' numbers in packed records; workers without one get one."""
        execute, number = self._connection.execute, self._id(run)
        if run not in self._numbers:
            names = self.reader.workers(run)
            self._numbers[run] = {name: known for known, name in names.items()}
        numbers = self._numbers[run]
        for name in workers:
            if name not in numbers:
                # One that was lost may be in records yet.
                query = "SELECT ifnull(max(number), -1) + 1 FROM workers WHERE run = ? AND number < ?"
                (numbers[name],) = execute(query, (number, MOST_WORKERS)).fetchone()
                execute("INSERT INTO workers VALUES (?, ?, ?)", (number, numbers[name], name))
        return [numbers[name] for name in workers]


def _is_of_the_file(error: Exception) -> bool:
    """Return whether an error is about the disk or the whole file, rather than one change's values."""
    return isinstance(error, sqlite3.OperationalError | MemoryError) or type(error) is sqlite3.DatabaseError
