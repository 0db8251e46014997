"""Writes that fail with an error of the disk, in real processes, by a library that is compiled for it."""

import os
import re
import subprocess
import sys

import pytest

from lab.chaos.errors import NotPossibleHereError
from lab.chaos.failing_writes import FailingWrites, make_library
from lab.chaos.injections import BadDisk
from rpc.processes import Process

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


@pytest.mark.ci
def test_a_manager_that_starts_meanwhile_says_so(writes, tmp_path, wait_until):
    """It ends with an error that names file and reason, and starts when the disk is well again."""
    line = [sys.executable, "-m", "evenpace", "manager", "--listen", "127.0.0.1:0"]
    line += ["--state", str(writes.below)]
    manager = Process("manager", line, tmp_path / "log", "manager", environment=writes.environment())
    with manager:
        wait_until(lambda: "listening" in manager.said(), "its start")
        manager.kill()
        wait_until(lambda: not manager.running, "its end")
        writes.begin()
        manager.start()
        wait_until(lambda: not manager.running, "its end")
        assert manager.popen.returncode == 1
        assert "manager.sqlite cannot be used (disk I/O error): see that its disk" in manager.said()
        writes.end()
        manager.start()
        wait_until(lambda: "listening" in manager.said(), "its start")


def test_without_a_compiler_the_reason_is_said(tmp_path, monkeypatch):
    """It names what to install."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotPossibleHereError, match="no C compiler here: install Debian's `gcc`"):
        make_library(tmp_path)
