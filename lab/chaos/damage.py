"""Damage to a shard's checkpoints or a manager's state on disk, and the search for what a job can lose.

It knows the files' names, tables and checksums, and no process.
"""

import contextlib
import itertools
import os
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from batchsize_manager.storage.state_copies import COPIED
from batchsize_manager.storage.state_format import STATE_FILE
from ps.checkpoint import UnreadableError, check, read

_SUFFIX = ".checkpoint"
_SPARED = 2  # newest files of another shard, among which is the one that is left: it may write one more


@dataclass(frozen=True)
class SparedCopy:
    """A checkpoint that a job can lose, since all shards have an earlier one."""

    path: Path  # its file
    job: str  # name of the job
    version: int


def copy_to_lose(shard: Path, others: Sequence[Path]) -> SparedCopy | None:
    """Find a job's newest checkpoint at a shard, where all shards have a whole one of an earlier version."""
    for folder in sorted(path for path in shard.glob("*") if path.is_dir()):
        newest, *earlier = itertools.chain(_whole(folder), [None])
        left = {version for version in earlier if version is not None}
        for other in others:
            left &= set(itertools.islice(_whole(other / folder.name), _SPARED))
        if newest is not None and left:
            path = folder / f"{newest:012d}{_SUFFIX}"
            return SparedCopy(path, read(path).job, newest)
    return None


def flip_bit(path: Path, place: float) -> str:
    """Flip one bit of a file, at a place from 0, its begin, to 1; return where, in words."""
    with path.open("r+b") as file:
        bits = 8 * file.seek(0, os.SEEK_END)
        byte, bit = divmod(min(int(place * bits), bits - 1), 8)
        file.seek(byte)
        (value,) = file.read(1)
        file.seek(byte)
        file.write(bytes([value ^ 1 << bit]))
    return f"bit {bit} of byte {byte} of {path.name} flipped"


@dataclass(frozen=True)
class DamagedState:
    """Damage to what a manager has saved of a job that has not ended."""

    job: str  # name of the job
    done: str  # what was done, in words


def flip_saved_bit(folder: Path, place: float) -> DamagedState | None:
    """Flip one bit of a text in a row of a job or member, in the state of a manager that does not run.

    It is at a place from 0, the begin of the first row, to 1, the end of the last; another bit of that byte
    where SQLite refuses it, since it would give a member another one's name. None: there is no job.
    """
    with contextlib.closing(sqlite3.connect(folder / STATE_FILE)) as file, file:
        names = dict(file.execute("SELECT id, job FROM runs WHERE ended IS NULL"))
        texts = []
        for table, columns in COPIED.items():
            owner = "id" if table == "runs" else "run"
            for column in columns:
                query = (
                    f"SELECT {owner}, id, CAST({column} AS BLOB) FROM {table} WHERE typeof({column}) = 'text'"
                )
                texts += [(table, column, *row) for row in file.execute(query) if row[0] in names]
        all_bits = sum(8 * len(text) for *_, text in texts)
        bits = min(int(place * all_bits), all_bits - 1)  # before the one that flips
        for table, column, run, number, text in texts:
            if bits < 8 * len(text):
                byte, bit = divmod(bits, 8)
                statement = f"UPDATE OR IGNORE {table} SET {column} = CAST(? AS TEXT) WHERE id = ?"
                for other in (bit ^ change for change in range(8)):
                    flipped = bytearray(text)
                    flipped[byte] ^= 1 << other
                    if file.execute(statement, (bytes(flipped), number)).rowcount:
                        done = f"bit {other} of byte {byte} of {column} in row {number} of {table} flipped"
                        return DamagedState(names[run], done)
            bits -= 8 * len(text)
    return None


def remove(path: Path) -> str:
    """Remove a file; return so, in words."""
    path.unlink()
    return f"{path.name} removed"


def _whole(folder: Path) -> Iterator[int]:
    """Yield the versions of a job's whole checkpoints, the newest first; others end them.

    What is damaged stays on the disk until its version is written again.
    """
    for path in sorted(folder.glob(f"*{_SUFFIX}"), reverse=True):
        try:
            check(path)
        except (OSError, UnreadableError):
            continue
        yield int(path.stem)
