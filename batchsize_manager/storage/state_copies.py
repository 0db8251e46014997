"""The second copies of a state file's rows of jobs and members, and their use where a row is damaged.

A job without its row could not go on, however sound its workers and shards are. A row and its copy are
written in one transaction, so that they are of the same moment; each has a checksum over all that is copied.
This module knows SQL, and no job.
"""

import json
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from batchsize_manager.storage.state_format import seal, unseal

COPIED = {"runs": ("run", "job", "policy", "state"), "members": ("run", "worker", "state")}
"""Columns that are copied, by table; the last one is sealed with the others."""

_COPY = "INSERT OR REPLACE INTO copies VALUES (?, ?, ?)"


@dataclass(frozen=True, slots=True)
class Repair:
    """A statement of SQL that mends a damaged row or copy, and what to tell of it, if anything."""

    statement: str
    values: tuple[Any, ...]
    notice: str = ""


def write_copy(connection: sqlite3.Connection, table: str, number: int, row: Sequence[Any]) -> None:
    """Write the copy of the row with this id, in the order of the table's columns in `COPIED`."""
    connection.execute(_COPY, _copy(table, number, row))


def delete_copies(connection: sqlite3.Connection, run: int) -> None:
    """Delete the copies of the members of a run; to be called before these are deleted."""
    connection.execute(
        "DELETE FROM copies WHERE of = 'members' AND id IN (SELECT id FROM members WHERE run = ?)", (run,)
    )


def repairs(connection: sqlite3.Connection) -> Iterator[Repair]:
    """Yield what makes damaged rows as their copies are, and damaged copies as their rows are.

    A row that is damaged as its copy is stays as it is. A job whose whole row is gone is not made again,
    since it is not known whether it had ended.
    """
    jobs: dict[int, str] = {}
    for table, columns in COPIED.items():
        names = ", ".join(columns)
        rows = {row[0]: list(row[1:]) for row in connection.execute(f"SELECT id, {names} FROM {table}")}
        copies = dict(_sound_copies(connection, table))
        there = {number: row for number, row in rows.items() if _is_sound(row)}
        keys = {tuple(row[:2]) for row in there.values()}
        for number in sorted(rows.keys() | copies.keys()):
            row, copy = rows.get(number), copies.get(number)
            sound = there.get(number, copy)
            if sound is None:
                continue
            if table == "runs":
                jobs[number] = sound[1]
                whose = f"job {sound[1]}: its state"
            else:
                whose = f"job {jobs.get(sound[0], 'of unknown name')}: the state of its member {sound[1]}"
            mended = f"{whose} was damaged, and is written again from its copy"
            if row is None and (table == "runs" or tuple(sound[:2]) in keys):
                lost = f"{whose} is lost" * (table == "runs")
                yield Repair("DELETE FROM copies WHERE of = ? AND id = ?", (table, number), lost)
            elif row is None:
                places = ", ".join("?" * (len(columns) + 1))
                statement = f"INSERT INTO {table} ({names}, id) VALUES ({places})"
                yield Repair(statement, (*sound, number), mended)
            elif row != sound:
                assignments = ", ".join(f"{name} = ?" for name in columns)
                yield Repair(f"UPDATE {table} SET {assignments} WHERE id = ?", (*sound, number), mended)
            elif copy != sound:
                yield Repair(_COPY, _copy(table, number, sound))


def _sound_copies(connection: sqlite3.Connection, table: str) -> Iterator[tuple[int, list[Any]]]:
    """Yield ids and columns of the rows in copies that are as they were written."""
    for number, content in connection.execute("SELECT id, content FROM copies WHERE of = ?", (table,)):
        try:
            yield number, json.loads(unseal(content, table, number))
        except ValueError:
            continue


def _is_sound(row: Sequence[Any]) -> bool:
    """Return whether a row has the checksum that it was sealed with."""
    *others, sealed = row
    try:
        unseal(sealed, *others)
    except ValueError:
        return False
    return True


def _copy(table: str, number: int, row: Sequence[Any]) -> tuple[Any, ...]:
    """Return the values of a row's copy."""
    return table, number, seal(json.dumps(row), table, number)
