"""A shard's folder: the jobs' checkpoints and ledgers, written by one thread beside the service.

It knows files and how long they are kept, but neither gradients nor workers. What fails is logged, and
training goes on: the checkpoints that are there stay.
"""

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
import threading
import time
from collections.abc import Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ps import checkpoint as files
from ps.checkpoint import Checkpoint, UnreadableError
from ps.log_fields import log_fields
from rpc.errors import InvalidRequestError, UnavailableError

log = logging.getLogger(__name__)

_LATEST = 3  # checkpoints of a job that are kept in any case
_SUFFIX = ".checkpoint"
_PART = ".part"  # of a file that is being written


class Store:
    """The folder of one shard process.

    Args:
        folder: Made if it is not there.
        ledger: The folder for files in which each job's steps are written down; None for none.

    Raises:
        UnavailableError: Another process has it.
        OSError: It cannot be used.
    """

    def __init__(self, folder: Path, ledger: Path | None = None) -> None:
        self._folder = folder
        self._ledger = ledger
        folder.mkdir(parents=True, exist_ok=True)
        if ledger is not None:
            ledger.mkdir(parents=True, exist_ok=True)
        self._lock = (folder / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._lock.close()
            raise UnavailableError(
                f"{folder} is in use by another shard of the parameter server: each needs a folder of its own"
            ) from error
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoints")

    def job(self, name: str) -> "JobStore":
        """The part of one job; nothing is made before there is something to write."""
        own = _folder_name(name)
        ledger = self._ledger / f"{own}.jsonl" if self._ledger is not None else None
        return JobStore(self._folder / own, name, self._writer, ledger)

    def remove_old(self, seconds: float, but: Collection[str]) -> None:
        """Remove what is left of jobs that have not been written to for so long, except for some."""
        spared = {_folder_name(name) for name in but}
        for path in self._folder.iterdir():
            with contextlib.suppress(OSError):
                if path.is_dir() and path.name not in spared:
                    written = max(file.stat().st_mtime for file in (path, *path.iterdir()))
                    if time.time() - written > seconds:
                        log.info("%s: removed, everybody has left the job long ago", path)
                        shutil.rmtree(path)

    def close(self) -> None:
        """Write what is to be written, and let others have the folder."""
        self._writer.shutdown(wait=True)
        self._lock.close()


class JobStore:
    """The checkpoints and the ledger of one job.

    Args:
        folder: Of this job alone.
        job: Its name.
        writer: With one thread.
        ledger: The file; None if there is none.

    Attributes:
        versions: Of which there is a checkpoint, ascending.
        written: How many this process has written.
        failed: How many it could not write.
        writing: Seconds that it took to write them.
        written_bytes: Of them.
        written_at: When the last was written, on the monotonic clock; None before.
    """

    def __init__(self, folder: Path, job: str, writer: ThreadPoolExecutor, ledger: Path | None) -> None:
        self._folder = folder
        self._job = job
        self._writer = writer
        self._ledger = ledger
        self._lock = threading.Lock()  # between a checkpoint's last moment and `go_back`
        self._lineage = 0  # how often the job went back: what was to be written before is no longer its past
        self._pending: Future[None] | None = None
        self.written = self.failed = self.written_bytes = 0
        self.writing = 0.0
        self.written_at: float | None = None
        self.versions = tuple(sorted(self._readable()))
        self._kept = -1  # the latest version of which all shards have a checkpoint, as far as is known

    def save(self, checkpoint: Checkpoint) -> None:
        """Have a checkpoint written; waits for the one before, so that the disk sets the pace at worst."""
        self.settle()
        self._pending = self._writer.submit(self._write, checkpoint, self._lineage)

    def settle(self) -> None:
        """Wait for the checkpoint that is being written."""
        if self._pending is not None:
            self._pending.result()

    def keep(self, version: int) -> None:
        """All shards have a checkpoint of this version."""
        self._kept = max(version, self._kept)

    def read(self, version: int) -> Checkpoint:
        """One of the checkpoints.

        Raises:
            InvalidRequestError: There is none of this version, or not any more.
        """
        try:
            checkpoint = files.read(self._path(version))
            if (checkpoint.job, checkpoint.snapshot.version) != (self._job, version):
                raise UnreadableError(f"{self._path(version)} is of job {checkpoint.job!r}")
        except (OSError, UnreadableError) as error:
            raise InvalidRequestError(f"version {version} cannot be read: {error}") from error
        return checkpoint

    def newest(self) -> Checkpoint | None:
        """The newest that can be read."""
        for version in reversed(self.versions):
            try:
                return self.read(version)
            except InvalidRequestError as error:
                log.warning("job %s: %s", self._job, error, extra=log_fields(self._job, iteration=version))
                self.versions = tuple(v for v in self.versions if v != version)
        return None

    def go_back(self, version: int) -> None:
        """Forget what came after a version, whether it is written by now or not."""
        with self._lock:
            self._lineage += 1
            self._kept = min(self._kept, version)
            for later in (v for v in self.versions if v > version):
                self._remove(later)
            self.versions = tuple(v for v in self.versions if v <= version)

    def note(self, record: Mapping[str, Any]) -> None:
        """Append a line to the ledger, if there is one."""
        if self._ledger is not None:
            self._writer.submit(self._append, self._ledger, json.dumps(record).encode() + b"\n")

    def _write(self, checkpoint: Checkpoint, lineage: int) -> None:
        version = checkpoint.snapshot.version
        path = self._path(version)
        part = path.with_suffix(_PART)
        began = time.monotonic()
        try:
            self._make_folder()
            files.write(part, checkpoint)
            with self._lock:
                if lineage != self._lineage:
                    part.unlink()
                    return
                size = part.stat().st_size
                os.replace(part, path)
                self.versions = tuple(sorted({*self.versions, version}))
            _sync(self._folder)
            self._retire()
            self.written += 1
            self.written_bytes += size
            self.written_at = time.monotonic()
            self.writing += self.written_at - began
        except OSError as error:
            self.failed += 1
            log.error(
                "job %s: no checkpoint of version %d: %s",
                self._job,
                version,
                error,
                extra=log_fields(self._job, attempt=checkpoint.attempt, iteration=version),
            )
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)

    def _retire(self) -> None:
        """Remove checkpoints that nobody will go back to."""
        with self._lock:
            common = [v for v in self.versions if v <= self._kept]
            staying = {*self.versions[-_LATEST:], *common[-1:]}
            for version in self.versions:
                if version not in staying:
                    self._remove(version)
            self.versions = tuple(sorted(staying))

    def _append(self, ledger: Path, line: bytes) -> None:
        try:
            with ledger.open("ab+") as stream:
                if stream.tell():
                    stream.seek(-1, os.SEEK_END)
                    if stream.read(1) != b"\n":  # the process was killed within the last line
                        line = b"\n" + line
                stream.write(line)
        except OSError as error:
            log.error("job %s: the ledger misses a line: %s", self._job, error, extra=log_fields(self._job))

    def _readable(self) -> list[int]:
        """The versions of whole files; parts of files are removed."""
        versions = []
        for path in sorted(self._folder.glob("*")) if self._folder.is_dir() else []:
            if path.suffix == _PART:
                with contextlib.suppress(OSError):
                    path.unlink()
            elif path.suffix == _SUFFIX:
                try:
                    files.check(path)
                    versions.append(int(path.stem))
                except (OSError, ValueError) as error:
                    log.warning(
                        "job %s: %s; an older checkpoint will have to do",
                        self._job,
                        error,
                        extra=log_fields(self._job),
                    )
        return versions

    def _make_folder(self) -> None:
        if not self._folder.is_dir():
            self._folder.mkdir()
            _sync(self._folder.parent)

    def _path(self, version: int) -> Path:
        return self._folder / f"{version:012d}{_SUFFIX}"

    def _remove(self, version: int) -> None:
        with contextlib.suppress(OSError):
            self._path(version).unlink()


def _folder_name(job: str) -> str:
    """Readable, and another for each job, whatever its name is made of."""
    readable = re.sub(r"[^A-Za-z0-9_-]+", "_", job)[:60]
    return f"{readable}-{hashlib.sha256(job.encode()).hexdigest()[:16]}"


def _sync(folder: Path) -> None:
    """Have a folder's names on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
