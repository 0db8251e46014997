"""The format of a manager's state file: SQLite tables, and workers' records packed into blobs.

The records of an iteration's workers are packed into one blob, 53 bytes each; nothing is pickled.
"""

import contextlib
import re
import sqlite3
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from idl.errors import EvenpaceError
from idl.records import IterationRecord

STATE_FILE = "manager.sqlite"
BUSY_SECONDS = 5.0  # to wait until another process releases the file

FORMAT = 6  # SQLite's user_version
_APPLICATION = 0x45764E70  # its application_id: "EvNp"

# A worker's record in an iteration; the last two: whether there is a predicted speed, and that speed or 0.
_FIELDS = ("worker", "batch_size", "time", "waiting", "cpu", "memory", "predicted", "predicted_speed")
_ROW = np.dtype(list(zip(_FIELDS, ("<u4", "<i8", "<f8", "<f8", "<f8", "<f8", "?", "<f8"), strict=True)))

MOST_WORKERS = 2**32  # of a run, in its life: their numbers are below

_SCHEMA = f"""
CREATE TABLE runs (
    id INTEGER PRIMARY KEY,
    run TEXT NOT NULL UNIQUE,
    job TEXT NOT NULL,
    policy TEXT NOT NULL,  -- of the manager; that of an operator is in state
    state TEXT NOT NULL,  -- JSON: JobState without its members
    begun REAL NOT NULL,  -- seconds since 1970, here and below
    ended REAL,
    ending TEXT,
    learned BLOB NOT NULL DEFAULT x''
);
CREATE TABLE members (
    id INTEGER PRIMARY KEY,  -- ascends in the order of slices
    run INTEGER NOT NULL,
    worker TEXT NOT NULL,
    state TEXT NOT NULL,  -- JSON: SavedMember
    UNIQUE (run, worker)
);
CREATE TABLE workers (
    run INTEGER NOT NULL,
    number INTEGER NOT NULL,  -- in iterations.workers
    name TEXT NOT NULL,
    PRIMARY KEY (run, number)
) WITHOUT ROWID;
CREATE TABLE iterations (
    run INTEGER NOT NULL,
    iteration INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    start INTEGER NOT NULL,
    total INTEGER NOT NULL,
    duration REAL NOT NULL,
    completed REAL NOT NULL,
    workers BLOB NOT NULL,
    at_once BLOB,  -- 8 bytes each, as in IterationRecord; NULL: 1 by each worker
    PRIMARY KEY (run, iteration)
);
CREATE TABLE events (
    id INTEGER PRIMARY KEY,
    run INTEGER NOT NULL,
    said REAL NOT NULL,
    event TEXT NOT NULL
);
CREATE INDEX events_of_run ON events (run, id);
PRAGMA application_id={_APPLICATION};
PRAGMA user_version={FORMAT};
"""


# What is wrong with one value or one row, in the words of SQLite's check: it costs that row.
_OF_A_ROW = re.compile(
    r"(NULL|NUMERIC|TEXT|non-\w+) value in |row \d+ missing from index |non-unique entry in "
)


class StateError(EvenpaceError):
    """A manager's state cannot be used; the message says which file, why, and what to do."""


def create_tables(connection: sqlite3.Connection) -> None:
    """Make an empty file a manager's state, within a transaction of the caller's."""
    for statement in _SCHEMA.split(";\n"):
        connection.execute(statement)


def check_format(path: Path, connection: sqlite3.Connection) -> None:
    """Check that a file is a manager's state, in the present format.

    Raises:
        StateError: The file is another program's, or of another format.
    """
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    if application != _APPLICATION:
        raise StateError(f"{path} is not a manager's state: give --state a folder of its own")
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version != FORMAT:
        raise StateError(
            f"{path} is of format {version}, and this version of evenpace knows format {FORMAT} alone: "
            f"run the version that wrote it, or give --state another folder"
        )


def check_pages(connection: sqlite3.Connection) -> None:
    """Check the structure of a file, but for the values in its rows, which are checked as they are read.

    Raises:
        sqlite3.DatabaseError: It is damaged.
    """
    for (found,) in connection.execute("PRAGMA quick_check"):
        problem = found.splitlines()[-1]  # the first is a heading
        if problem != "ok" and not _OF_A_ROW.match(problem):
            raise sqlite3.DatabaseError(problem)


def decoded(text: bytes) -> str | bytes:
    """Return the text that SQLite has read; where it is none, the bytes, which no column of texts has."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        return text


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn SQLite's errors, and those of values that make no sense, into a `StateError`."""
    try:
        yield
    except sqlite3.OperationalError as error:  # the disk, rather than what is on it
        raise StateError(
            f"{path} cannot be used ({error}): see that its disk has room, and lets this user write"
        ) from error
    except (sqlite3.DatabaseError, ValueError, TypeError, KeyError, struct.error) as error:
        raise StateError(
            f"{path} is damaged ({error}): put a copy back, or move it away to start without memory of jobs"
        ) from error


def pack_records(record: IterationRecord, numbers: Sequence[int]) -> bytes:
    """Pack the parts of an iteration's workers; `numbers` are the workers' own, (workers,)."""
    rows = np.empty(len(record.workers), _ROW)
    speeds = record.predicted_speeds
    predicted = ~np.isnan(speeds)
    for name, column in zip(
        _FIELDS,
        (
            *(numbers, record.batch_sizes, record.batch_processing_times, record.waiting_times),
            *(record.cpu_usages, record.memory_usages, predicted, np.where(predicted, speeds, 0.0)),
        ),
        strict=True,
    ):
        rows[name] = column
    return rows.tobytes()


def pack_at_once(record: IterationRecord) -> bytes | None:
    """Pack the numbers of micro-batches that were computed at once; None where each worker computed one."""
    return record.at_once.tobytes() if (record.at_once > 1).any() else None


def unpack_records(packed: bytes, at_once: bytes | None) -> tuple[NDArray[np.uint32], bytes]:
    """Unpack the same.

    Args:
        packed: What `pack_records` returned.
        at_once: What `pack_at_once` returned.

    Returns:
        The workers' numbers, (workers,), and `IterationRecord.values`.

    Raises:
        ValueError: `packed` is not a whole number of records, or `at_once` has another number.
    """
    rows = np.frombuffer(packed, dtype=_ROW)
    columns = [rows[name] for name in _FIELDS[1:6]]
    columns.append(np.where(rows["predicted"], rows["predicted_speed"], np.nan))
    columns.append(np.ones(len(rows), "<i8") if at_once is None else np.frombuffer(at_once, "<i8"))
    if len(columns[-1]) != len(rows):
        raise ValueError(f"{len(columns[-1])} numbers of micro-batches at once, but {len(rows)} workers")
    return rows["worker"], b"".join([column.tobytes() for column in columns])
