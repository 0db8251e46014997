"""Damage to a manager's state: each place of its rows can be damaged."""

import contextlib
import sqlite3

import pytest

from batchsize_manager.storage.state_format import STATE_FILE, create_tables
from lab.chaos.damage import flip_saved_bit


@pytest.mark.parametrize("second", ["q", "c", "r"])  # each differs from s by one bit
def test_a_bit_is_flipped_wherever_that_makes_no_two_members_of_one_name(tmp_path, second):
    """Which SQLite refuses: another bit of the name is flipped then, and one in all."""
    with contextlib.closing(sqlite3.connect(tmp_path / STATE_FILE)) as file, file:
        create_tables(file)
        file.execute("INSERT INTO runs (run, job, policy, state, begun) VALUES ('r', 'j', 'even', '{}', 0)")
        for name in ("s", second):
            file.execute("INSERT INTO members (run, worker, state) VALUES (1, ?, '{}')", (name,))
    names, bits = set(), 8 * len("rjeven{}" + "s{}" + "s{}")
    for bit in range(bits):
        assert flip_saved_bit(tmp_path, (bit + 0.5) / bits).job == "j"
        with contextlib.closing(sqlite3.connect(tmp_path / STATE_FILE)) as file, file:
            names |= {row[0] for row in file.execute("SELECT CAST(worker AS BLOB) FROM members")}
            file.execute("UPDATE runs SET run = 'r', job = 'j', policy = 'even', state = '{}'")
            file.executemany(
                "UPDATE members SET worker = ?, state = '{}' WHERE id = ?", [("s", 1), (second, 2)]
            )
    assert len(names) > 8
