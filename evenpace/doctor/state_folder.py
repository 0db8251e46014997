"""A check of a folder for a service's state: room, rights, speed, and SQLite's locks.

It writes into a temporary folder inside it, which it removes afterwards.
"""

import contextlib
import errno
import os
import shutil
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from evenpace.doctor.findings import (
    GIB,
    MIB,
    Finding,
    Level,
    Subject,
    judged,
    milliseconds,
    note,
    ok,
    problem,
    size,
    warning,
)

_ANOTHER = "give another one with --state"
_MAKE_ROOM = "make room: without it, jobs are not remembered"
_WRITES = 9  # of which the median time is taken
_SLOW = 0.05  # seconds until a write is on the disk
_NETWORK = (
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "gpfs", "beegfs"),
    *("fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.s3fs", "fuse.gcsfuse", "virtiofs"),
)


def state(subject: Subject) -> Iterator[Finding]:
    """Check the folder for `--state`."""
    folder = subject.state
    if folder is None:
        return
    there = _nearest(folder)
    if not there.is_dir():
        yield problem("state", f"{there} is no folder", _ANOTHER)
        return
    if not os.access(there, os.W_OK | os.X_OK):
        yield problem(
            "state",
            f"{there} may not be written to",
            "let this user write there, or give another with --state",
        )
        return
    if there != folder:
        yield note("state", f"{folder} is not there yet; a service will make it")
    yield _kind(there, subject.root)
    yield _room(there)
    try:
        with tempfile.TemporaryDirectory(prefix=".evenpace-doctor-", dir=there) as scratch:
            yield _speed(Path(scratch))
            yield _write_ahead(Path(scratch))
    except OSError as error:
        yield _refused(there, error)


def file_system(folder: Path, root: Path = Path("/")) -> str:
    """Return the kind of file system that a folder is on; empty if it is not known."""
    best, kind = "", ""
    path = f"{folder.resolve()}/"
    for line in (root / "proc/self/mountinfo").read_text(errors="replace").splitlines():
        fields, _, rest = line.partition(" - ")
        top = fields.split()[4].encode().decode("unicode_escape").rstrip("/") + "/"
        if path.startswith(top) and len(top) >= len(best):
            best, kind = top, rest.split()[0]
    return kind


def _kind(folder: Path, root: Path) -> Finding:
    kind = file_system(folder, root)
    if kind in _NETWORK:
        return warning(
            "state",
            f"{folder} is on a network file system, {kind}",
            "use a disk of this machine: SQLite's locks and its write-ahead log need one",
        )
    if kind in ("tmpfs", "ramfs"):
        return warning(
            "state",
            f"{folder} is in memory, {kind}",
            "use a disk: what is there is lost when the machine restarts",
        )
    if kind == "overlay":
        return note(
            "state", f"{folder} is in a container's own layer", "mount a volume, to outlive the container"
        )
    return ok("state", f"{folder} is on {kind or 'a file system that is not known'}")


def _room(folder: Path) -> Finding:
    usage = shutil.disk_usage(folder)
    summary = f"{size(usage.free)} of {size(usage.total)} are free"
    level: Level = "problem" if usage.free < 64 * MIB else "warning"
    return judged("state", summary, fine=usage.free >= GIB, advice=_MAKE_ROOM, level=level)


def _speed(folder: Path) -> Finding:
    """Measure the time until 4 KiB are on the disk."""
    times = []
    with (folder / "written").open("wb", buffering=0) as stream:
        for _ in range(_WRITES):
            begun = time.perf_counter()
            stream.write(os.urandom(4096))
            os.fsync(stream.fileno())
            times.append(time.perf_counter() - begun)
    summary = f"a write is on the disk after {milliseconds(statistics.median(times))}"
    do = "use a faster disk, or one with less to do: recoveries wait for it"
    return judged("state", summary, fine=statistics.median(times) <= _SLOW, advice=do)


def _write_ahead(folder: Path) -> Finding:
    """Check whether SQLite can keep a write-ahead log in the folder."""
    do = "use a disk of this machine for --state"
    try:
        with contextlib.closing(sqlite3.connect(folder / "tried.sqlite", timeout=1.0)) as file:
            (mode,) = file.execute("PRAGMA journal_mode=WAL").fetchone()
            if mode != "wal":
                return problem("state", f"SQLite has no write-ahead log there, but {mode}", do)
            with file:
                file.execute("CREATE TABLE tried (number INTEGER)")
    except sqlite3.Error as error:
        return problem("state", f"SQLite cannot work there: {error}", do)
    return ok("state", "SQLite keeps a write-ahead log there")


def _refused(folder: Path, error: OSError) -> Finding:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return problem("state", f"{folder} is full", _MAKE_ROOM)
    return problem("state", f"{folder} cannot be written to: {error.strerror}", _ANOTHER)


def _nearest(folder: Path) -> Path:
    """Return the folder, or its nearest parent that exists."""
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
