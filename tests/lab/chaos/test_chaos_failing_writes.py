"""Writes that fail with an error of the disk, in real processes, by a library that is compiled for it."""

import os
import re
import subprocess
import sys

import pytest

from lab.chaos.errors import NotPossibleHereError
from lab.chaos.failing_writes import FailingWrites, make_library
from lab.chaos.injections import BadDisk

WRITES = """
import os, sqlite3, sys
from pathlib import Path
below = Path(sys.argv[1])
database = sqlite3.connect(below / "sqlite", isolation_level=None)
database.execute("PRAGMA journal_mode=WAL")
database.execute("CREATE TABLE IF NOT EXISTS numbers (number)")
file = os.open(below / "file", os.O_WRONLY | os.O_CREAT)

def tried(function, *values):
    try:
        function(*values)
    except (OSError, sqlite3.Error) as error:
        return str(error)
    return "done"

print("ready", flush=True)
for line in sys.stdin:
    print(
        tried(os.write, file, b"x"),
        tried(os.fsync, file),
        tried((below / "other").write_text, "x"),
        tried(database.execute, "INSERT INTO numbers VALUES (1)"),
        tried((below.parent / "outside").write_text, "x"),
        sep="; ",
        flush=True,
    )
"""


@pytest.fixture
def writes(tmp_path):
    """A switch for the writes to a folder."""
    (tmp_path / "state").mkdir()
    try:
        library = make_library(tmp_path)
    except NotPossibleHereError as error:
        pytest.skip(str(error))
    return FailingWrites(library, tmp_path / "failing", tmp_path / "state")


def test_writes_and_fsync_fail_until_the_end_of_the_fault(writes):
    """Those of SQLite, too, and none to other folders; it is moot where nothing was written."""
    line = [sys.executable, "-c", WRITES, str(writes.below)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(line, env=os.environ | writes.environment(), **pipes) as process:

        def write():
            process.stdin.write("\n")
            process.stdin.flush()
            return process.stdout.readline().strip().split("; ")

        assert process.stdout.readline() == "ready\n"
        assert write() == ["done"] * 5
        disk = BadDisk(writes)
        assert (disk.fired(), disk.moot) == (None, True)
        failed = "[Errno 5] Input/output error"
        assert write() == [failed, failed, failed, "disk I/O error", "done"]
        assert re.fullmatch(r"\d+ writes failed with EIO", disk.fired())
        assert writes.failed >= 4
        assert not disk.moot
        disk.lift()
        assert write() == ["done"] * 5
        disk.lift()
        process.stdin.close()
