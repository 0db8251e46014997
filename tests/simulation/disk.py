"""Disks of services: what is written stays only once it is flushed, and the operations may fail.

The files themselves are real ones, in a scenario's folder, and what a process reads there is what it has
written. A disk remembers what of it would be lost with the machine: bytes since a file's last `fsync`, and
entries of a folder since that one's, as SQLite's commits since the last that was flushed (WAL).
Of a folder's changes the first ones survive, some of them, as with a file system that has a journal; a folder
that is removed is removed at once, and the disk's own is always there.
"""

import errno
import io
import os as real_os
import random
import shutil
import sqlite3 as real_sqlite3
import stat
from collections import deque
from pathlib import Path

from tests.simulation.modules import like
from tests.simulation.world import World

_LONG = 400_000  # bytes of SQLite's log, from which on a commit is followed by a checkpoint
_LOG_HEADER, _FRAME_HEADER = 32, 24  # bytes
_MESSAGES = {errno.ENOSPC: "database or disk is full", errno.EIO: "disk I/O error"}


class Disk:
    """The disk of one service, for all processes that it is in turn.

    Args:
        folder: The folder, which is made.
        seed: Decides what is lost.

    Attributes:
        path: The folder, as a path that simulated processes can be given.
        process: The process that has it.
        is_full: Whether it takes no more.
        fails: The kind of the next operation that fails: "write", "fsync" or "read"; None for no such.
        delay: Seconds that an operation takes at most.
    """

    def __init__(self, folder, seed):
        folder.mkdir()
        self.path = _Path(folder)
        self.process = None
        self.is_full, self.fails, self.delay = False, None, 0.0
        self.draw = random.Random(seed)
        self._last, self._on_death = None, None  # how many operations until the process dies, and then?
        self._flushed = {}  # contents that would survive, of files that were written to since, by number
        self._entries = []  # folders' numbers, and how to take a change of their entries back
        self._log_flushed = b"", 0  # SQLite's log: the salt, and up to which byte it would survive
        self.databases = []

    def attach(self, process):
        """Have another process use it."""
        self.process, process.disk = process, self

    def die_at(self, operation, on_death):
        """Let the process that has it then die in the n-th operation from now.

        Args:
            operation: The number, from 1.
            on_death: Called when it is dead, with this disk.
        """
        self._last, self._on_death = operation, on_death

    def lose_process(self):
        """Let go of what a process had that was killed; what it has written stays."""
        for database in self.databases:
            kept = {path: path.read_bytes() for path in _files(database.path) if path.exists()}
            database.end()  # it would write the log into the database, and remove it
            for path, content in kept.items():
                path.write_bytes(content)
        self.databases = []

    def lose_writes(self):
        """Let go of what a machine has not flushed that crashes; the process is dead."""
        self.lose_process()
        folder = Path(self.path)
        for path in sorted(folder.rglob("*")):
            if (flushed := self._flushed.get(path.stat().st_ino)) is not None:
                path.write_bytes(self._left(flushed, path.read_bytes()))
        survivors = {}
        for number in dict.fromkeys(number for number, _ in self._entries):
            changes = sum(number == one for one, _ in self._entries)
            survivors[number] = self.draw.randint(0, changes)
        lost = []
        for number, undo in self._entries:
            survivors[number] -= 1
            if survivors[number] < 0:
                lost.append(undo)
        for undo in reversed(lost):
            undo()
        self._flushed, self._entries = {}, []
        for log in sorted(folder.glob("*-wal")):
            salt, end = _extent(log.read_bytes())
            begin = self._log_flushed[1] if salt == self._log_flushed[0] else min(end, _LOG_HEADER)
            real_os.truncate(log, self.draw.randint(begin, end))
            self._log_flushed = _extent(log.read_bytes())

    def _left(self, flushed, written):
        """Return what is left of a file: bytes at its end are lost, or are zeros."""
        if not written.startswith(flushed) and self.draw.random() < 0.5:
            return flushed
        begin = len(flushed) if written.startswith(flushed) else 0
        left = written[: self.draw.randint(begin, len(written))]
        return left + bytes(len(written) - len(left)) if self.draw.random() < 0.5 else left

    # -- operations

    def operate(self, kind, last=lambda: None):
        """Let an operation take its time; it may fail, and it may be the process's last.

        Args:
            kind: "read", "write" or "make", which take room, "fsync", or "move".
            last: Does what is done of it by a process that dies.
        """
        if self.delay:
            World.current.sleep(self.draw.uniform(0, self.delay))
        if self._last is not None:
            self._last -= 1
            if not self._last:
                self._last = None
                last()
                self.process.kill()
                self._on_death(self)
                World.current.wait(deque())
        if self.is_full and kind in ("write", "make"):
            raise OSError(errno.ENOSPC, real_os.strerror(errno.ENOSPC))
        if self.fails == kind:
            self.fails = None
            raise OSError(errno.EIO, real_os.strerror(errno.EIO))

    def change(self, path, undo):
        """Note a change of a folder's entries, until the folder is flushed."""
        self._entries.append((path.parent.stat().st_ino, undo))

    def write(self, path):
        """Note that a file is about to be written to, until it is flushed."""
        if (number := real_os.stat(path).st_ino) not in self._flushed:
            self._flushed[number] = Path(path).read_bytes()

    def forget(self, path):
        """Return what would survive of a file that is about to be removed."""
        return self._flushed.pop(path.stat().st_ino, Path(path).read_bytes())

    def flush(self, descriptor):
        """Make a file's content, or a folder's entries, survive."""
        status = real_os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            self._entries = [each for each in self._entries if each[0] != status.st_ino]
        else:
            self._flushed.pop(status.st_ino, None)

    def committed(self, database):
        """Note what survives of SQLite's log, which is written into the database once it is long."""
        salt, end = _extent(_files(database.path)[1].read_bytes())
        if end > _LONG:
            database.checkpoint()
        if end > _LONG or database.is_flushed:
            self._log_flushed = salt, end


def _disk():
    """Return the disk of the process that runs, if it has one."""
    world = World.current
    return None if world is None or world.over or world.running is None else world.running.disk


class _Path(type(Path())):
    """A path whose changes are a disk's operations."""

    def open(self, mode="r", buffering=-1, encoding=None, errors=None, newline=None):
        """Open the file."""
        disk, kind = _disk(), mode.replace("b", "").replace("t", "")
        if disk is None or kind == "r":
            return super().open(mode, buffering, encoding, errors, newline)
        if self.exists():
            if "w" in kind:
                disk.operate("move")
                disk.write(self)
            raw = _File(self, kind)
        else:
            disk.operate("make")
            raw = _File(self, kind)
            disk.change(self, lambda: Path(self).unlink(missing_ok=True))
        buffered = (io.BufferedRandom if "+" in kind else io.BufferedWriter)(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding, errors, newline)

    def read_bytes(self):
        """Return the file's content."""
        if (disk := _disk()) is not None:
            disk.operate("read")
        return Path(self).read_bytes()

    def mkdir(self, mode=0o777, parents=False, exist_ok=False):
        """Make the folder."""
        if (disk := _disk()) is not None and not self.exists():
            disk.operate("make")
            disk.change(self, lambda: shutil.rmtree(self, ignore_errors=True))
        super().mkdir(mode, parents, exist_ok)

    def unlink(self, missing_ok=False):
        """Remove the file."""
        if (disk := _disk()) is not None and self.exists():
            disk.operate("move")
            left = disk.forget(self)
            disk.change(self, lambda: Path(self).write_bytes(left))
        super().unlink(missing_ok)


class _File(io.FileIO):
    """A file that is written to by a disk's operations."""

    def write(self, data):
        """Write bytes."""
        if (disk := _disk()) is not None:
            disk.write(self.name)
            disk.operate("write", lambda: super(_File, self).write(data[: disk.draw.randint(0, len(data))]))
        return super().write(data)


def _fsync(descriptor):
    if (disk := _disk()) is None:
        return real_os.fsync(descriptor)
    disk.operate("fsync")
    return disk.flush(descriptor)


def _replace(source, target):
    disk = _disk()
    if disk is None or not isinstance(target, _Path):
        return real_os.replace(source, target)
    disk.operate("move")
    before = disk.forget(target) if target.exists() else None

    def undo():
        real_os.replace(target, source)
        if before is not None:
            Path(target).write_bytes(before)

    disk.change(target, undo)
    return real_os.replace(source, target)


os = like(real_os, fsync=_fsync, replace=_replace)


def _files(database):
    """Return the paths of a database and its log."""
    return database, database.with_name(f"{database.name}-wal")


def _extent(log):
    """Return the salt of SQLite's log, and where the last frame ends that is of it."""
    if len(log) < _LOG_HEADER:
        return b"", 0
    salt, size = log[16:24], _FRAME_HEADER + int.from_bytes(log[8:12])
    end = _LOG_HEADER
    while len(log) >= end + size and log[end + 8 : end + 16] == salt:
        end += size
    return salt, end


class _Database(real_sqlite3.Connection):
    """A database whose commits are a disk's operations."""

    def __init__(self, path, *arguments, **options):
        super().__init__(path, *arguments, **options)
        self.path, self._is_over = Path(path), False
        self.is_flushed = True  # whether what is committed survives at once
        if (disk := _disk()) is not None:
            disk.databases.append(self)
            super().execute("PRAGMA wal_autocheckpoint=0")  # see `Disk.committed`
            super().execute("PRAGMA synchronous=OFF")

    def execute(self, statement, *parameters):
        """Execute a statement."""
        disk = _disk()
        if disk is not None and statement.startswith("PRAGMA synchronous="):
            self.is_flushed = statement.endswith("FULL")
            return None
        if disk is None or statement != "COMMIT":
            return super().execute(statement, *parameters)
        self._operate(disk)
        result = super().execute(statement)
        disk.committed(self)
        return result

    def executescript(self, script):
        """Execute a script."""
        if (disk := _disk()) is not None:
            self._operate(disk)
        return super().executescript(script)

    @property
    def in_transaction(self):
        """Whether a transaction is open."""
        return not self._is_over and super().in_transaction

    def checkpoint(self):
        """Write the log into the database."""
        super().execute("PRAGMA wal_checkpoint(PASSIVE)")

    def end(self):
        """End it as its process has ended."""
        self._is_over = True
        self.close()

    @staticmethod
    def _operate(disk):
        try:
            disk.operate("write")
        except OSError as error:
            raise real_sqlite3.OperationalError(_MESSAGES[error.errno]) from error


def _connect(path, **options):
    return real_sqlite3.connect(path, **{"factory": _Database} | options)


sqlite3 = like(real_sqlite3, connect=_connect)
