"""The format of a manager's state file: SQLite tables, and workers' records packed into blobs.

The records of an iteration's workers are two blobs, of up to 68 bytes for each worker; nothing is pickled.
The states of jobs and members are sealed by a checksum, since most flips of a bit in JSON leave JSON of
another value; it covers whose they are, too. Their rows are there twice, as `state_copies` has it.
"""

import contextlib
import re
import sqlite3
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from idl.errors import EvenpaceError
from idl.gradient_norms import GradientNorms, StepNorms
from idl.records import COLUMNS, spare_last

STATE_FILE = "manager.sqlite"
BUSY_SECONDS = 5.0  # to wait until another process releases the file

FORMAT = 11  # SQLite's user_version
_APPLICATION = 0x45764E70  # its application_id: "EvNp"

MOST_WORKERS = 2**32  # of a run, in its life: their numbers are below

_NORMS = struct.Struct("<3q2d")

_SCHEMA = f"""
CREATE TABLE runs (
    id INTEGER PRIMARY KEY,
    run TEXT NOT NULL UNIQUE,
    job TEXT NOT NULL,
    policy TEXT NOT NULL,  -- of the manager; that of an operator is in state
    state TEXT NOT NULL,  -- sealed JSON: JobState without its members
    begun REAL NOT NULL,  -- seconds since 1970, here and below
    ended REAL,
    ending TEXT,
    learned BLOB NOT NULL DEFAULT x''
);
CREATE TABLE members (
    id INTEGER PRIMARY KEY,  -- ascends in the order of slices
    run INTEGER NOT NULL,
    worker TEXT NOT NULL,
    state TEXT NOT NULL,  -- sealed JSON: SavedMember
    UNIQUE (run, worker)
);
CREATE TABLE copies (
    of TEXT NOT NULL,  -- runs or members
    id INTEGER NOT NULL,  -- there
    content TEXT NOT NULL,  -- sealed JSON: the columns that `state_copies` names
    PRIMARY KEY (of, id)
) WITHOUT ROWID;
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
    workers BLOB NOT NULL,  -- their numbers, 4 bytes each, little-endian
    measured BLOB NOT NULL,  -- IterationRecord.values
    norms BLOB,  -- IterationRecord.norms, as pack_norms has them
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
_OF_A_ROW = re.compile(r"(NULL|NUMERIC|TEXT|non-\w+) value in |non-unique entry in ")
_OF_AN_INDEX = re.compile(r"row \d+ missing from index |wrong # of entries in index ")


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


def check_pages(connection: sqlite3.Connection) -> bool:
    """Check the structure of a file, but for the values in its rows, which are checked as they are read.

    Returns:
        Whether all indices have what their tables have; otherwise rows would not be found by them.

    Raises:
        sqlite3.DatabaseError: It is damaged in another way.
    """
    agree = True
    for (found,) in connection.execute("PRAGMA integrity_check"):
        problem = found.splitlines()[-1]  # the first is a heading
        if _OF_AN_INDEX.match(problem):
            agree = False
        elif problem != "ok" and not _OF_A_ROW.match(problem):
            raise sqlite3.DatabaseError(problem)
    return agree


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


def seal(text: str, *whose: Any) -> str:
    """Put a checksum before a text: of that and of the texts and numbers that say whose it is."""
    return f"{zlib.crc32(chr(0).join((text, *map(str, whose))).encode(errors='replace')):08x} {text}"


def unseal(sealed: Any, *whose: Any) -> str:
    """Return the text that was sealed.

    Raises:
        ValueError: This is no such text, or it has changed, or it was sealed with another `whose`.
    """
    if isinstance(sealed, str):
        text = sealed.partition(" ")[2]
        if seal(text, *whose) == sealed:
            return text
    raise ValueError(f"{sealed!r:.80}: does not have the checksum that it begins with")


def pack_norms(norms: StepNorms | None) -> bytes | None:
    """Pack the norms of a step; None where there are none."""
    if norms is None:
        return None
    own = norms.norms
    return _NORMS.pack(norms.iteration, own.contributions, own.samples, own.weighted, own.squared)


def unpack_norms(packed: bytes | None) -> StepNorms | None:
    """Return the norms that `pack_norms` has packed.

    Raises:
        ValueError: These are none.
        struct.error: They have another length.
    """
    if packed is None:
        return None
    iteration, *own = _NORMS.unpack(packed)
    norms = GradientNorms(*own)
    if not norms.is_finite or not norms.contributions or iteration < 0:
        raise ValueError(f"norms of iteration {iteration}: {norms}")
    return StepNorms(iteration, norms)


def check_values(values: bytes, workers: int) -> bytes:
    """Return `IterationRecord.values` of so many workers, if these are such.

    Raises:
        ValueError: The number of bytes does not fit the number of workers.
    """
    number, rest = divmod(len(values), 8 * workers) if workers else (len(COLUMNS), len(values))
    missing = COLUMNS[number:]
    if rest or number > len(COLUMNS) or not all(column.measured.spared for column in missing):
        raise ValueError(f"{len(values)} bytes of numbers for {workers} workers")
    return spare_last(values, workers)
