"""A shard's folder: the jobs' checkpoints and ledgers, written and read by threads beside the service.

Each job has a thread of its own, so that a disk that stalls for one holds up no other. It knows files and how
long they are kept, but neither gradients nor workers. What fails is logged, and training goes on: the
checkpoints that are there stay.
"""

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
import time
from collections.abc import Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from idl.errors import InvalidRequestError, UnavailableError
from ps import checkpoint as files
from ps.checkpoint import ShardCheckpoint, UnreadableError
from ps.log_fields import log_fields
from rpc.periodic import Periodic

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
        self._names = {path.name for path in folder.iterdir()}  # of the folders that there may be
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoints")
        self._removing = Periodic("removing old jobs from the folder")

    def job(self, name: str) -> "JobStore":
        """The part of one job; nothing is made before there is something to write."""
        own = _folder_name(name)
        ledger = self._ledger / f"{own}.jsonl" if self._ledger is not None else None
        found = own in self._names
        self._names.add(own)
        return JobStore(self._folder / own, name, ledger, found=found)

    def has(self, name: str) -> bool:
        """Whether there may be something of a job."""
        return _folder_name(name) in self._names

    def bring(self, name: str) -> "Future[tuple[JobStore, ShardCheckpoint] | None]":
        """Have a job's part looked at, and its newest checkpoint read; None if there is none."""
        return self._thread.submit(self._bring, name)

    def remove_old(self, seconds: float, but: Collection[str]) -> None:
        """Have removed what is left of jobs that have not been written to for so long, except for some."""
        self._thread.submit(self._remove_old, seconds, {_folder_name(name) for name in but})

    def close(self) -> None:
        """Write what is to be written, and let others have the folder."""
        self._thread.shutdown(wait=True)
        self._lock.close()

    def _bring(self, name: str) -> "tuple[JobStore, ShardCheckpoint] | None":
        store = self.job(name)
        checkpoint = store.newest()
        if checkpoint is None:
            self._names.discard(_folder_name(name))
            return None
        return store, checkpoint

    def _remove_old(self, seconds: float, spared: Collection[str]) -> None:
        with self._removing:
            for path in self._folder.iterdir():
                with contextlib.suppress(OSError):
                    if path.is_dir() and path.name not in spared:
                        written = max(file.stat().st_mtime for file in (path, *path.iterdir()))
                        if time.time() - written > seconds:
                            log.info("%s: removed, everybody has left the job long ago", path)
                            shutil.rmtree(path)
                            self._names.discard(path.name)


class JobStore:
    """The checkpoints and the ledger of one job.

    Args:
        folder: Of this job alone.
        job: Its name.
        ledger: The file; None if there is none.
        found: Whether the folder may hold checkpoints already.

    Attributes:
        versions: Of which there is a checkpoint, ascending.
        written: How many this process has written.
        failed: How many it could not write.
        writing: Seconds that it took to write them.
        written_bytes: Of them.
        written_at: When the last was written, on the monotonic clock; None before.
    """

    def __init__(self, folder: Path, job: str, ledger: Path | None, *, found: bool = True) -> None:
        self._folder = folder
        self._job = job
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoints")
        self._ledger = ledger
        self._under_way: int | None = None  # the version that is being written
        self.written = self.failed = self.written_bytes = 0
        self.writing = 0.0
        self.written_at: float | None = None
        self.versions = tuple(sorted(self._readable())) if found else ()  # changed by the job's thread alone
        self._kept = -1  # the latest version of which all shards have a checkpoint, as far as is known

    @property
    def is_writing(self) -> bool:
        """Whether a checkpoint is on its way to the disk."""
        return self._under_way is not None

    def save(self, checkpoint: ShardCheckpoint) -> "Future[None] | None":
        """Have a checkpoint copied, and then written, after the one before: the disk sets the pace at worst.

        Returns:
            Done when its tensors have been copied; None if there is one of this version, or will be.
        """
        version = checkpoint.snapshot.version
        if version in (*self.versions, self._under_way):
            return None
        self._under_way = version
        copied: Future[None] = Future()
        self._thread.submit(self._copy_and_write, checkpoint, copied)
        return copied

    def go_back(self, version: int) -> "Future[ShardCheckpoint]":
        """Have a checkpoint read, as `read` does, and later ones removed that are written by then."""
        return self._thread.submit(self._go_back, version)

    def forget(self) -> "Future[None]":
        """Have all checkpoints removed, those that are still to be written included."""
        return self._thread.submit(self._remove_after, -1)

    def close(self, *, wait: bool = True) -> None:
        """Take nothing more; what is to be written is."""
        self._thread.shutdown(wait=wait)

    def keep(self, version: int) -> None:
        """All shards have a checkpoint of this version."""
        self._kept = max(version, self._kept)

    def read(self, version: int) -> ShardCheckpoint:
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

    def newest(self) -> ShardCheckpoint | None:
        """The newest that can be read."""
        for version in reversed(self.versions):
            try:
                return self.read(version)
            except InvalidRequestError as error:
                log.warning("job %s: %s", self._job, error, extra=log_fields(self._job, iteration=version))
                self.versions = tuple(v for v in self.versions if v != version)
        return None

    def note(self, record: Mapping[str, Any]) -> None:
        """Append a line to the ledger, if there is one."""
        if self._ledger is not None:
            self._thread.submit(self._append, self._ledger, json.dumps(record).encode() + b"\n")

    def _go_back(self, version: int) -> ShardCheckpoint:
        checkpoint = self.read(version)
        self._remove_after(version)
        return checkpoint

    def _remove_after(self, version: int) -> None:
        self._kept = min(self._kept, version)
        later = [v for v in self.versions if v > version]
        self.versions = tuple(v for v in self.versions if v <= version)
        for each in later:
            self._remove(each)

    def _copy_and_write(self, checkpoint: ShardCheckpoint, copied: "Future[None]") -> None:
        version = checkpoint.snapshot.version
        try:
            checkpoint = replace(checkpoint, snapshot=checkpoint.snapshot.copied())
            copied.set_result(None)
            self._write(checkpoint)
        except RuntimeError as error:  # torch's, where there is no memory
            self._note_failure(checkpoint, error)
        finally:
            if not copied.done():
                copied.set_result(None)
            if self._under_way == version:
                self._under_way = None

    def _note_failure(self, checkpoint: ShardCheckpoint, error: Exception) -> None:
        self.failed += 1
        log.error(
            "job %s: no checkpoint of version %d: %s",
            self._job,
            checkpoint.snapshot.version,
            error,
            extra=log_fields(self._job, attempt=checkpoint.attempt, iteration=checkpoint.snapshot.version),
        )

    def _write(self, checkpoint: ShardCheckpoint) -> None:
        version = checkpoint.snapshot.version
        path = self._path(version)
        part = path.with_suffix(_PART)
        began = time.monotonic()
        try:
            self._make_folder()
            files.write(part, checkpoint)
            size = part.stat().st_size
            os.replace(part, path)
            _sync(self._folder)
            self.versions = tuple(sorted({*self.versions, version}))
            self._retire()
            self.written += 1
            self.written_bytes += size
            self.written_at = time.monotonic()
            self.writing += self.written_at - began
        except OSError as error:
            self._note_failure(checkpoint, error)
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)

    def _retire(self) -> None:
        """Remove checkpoints that nobody will go back to."""
        common = [v for v in self.versions if v <= self._kept]
        staying = {*self.versions[-_LATEST:], *common[-1:]}
        retired = [version for version in self.versions if version not in staying]
        self.versions = tuple(sorted(staying))
        for version in retired:
            self._remove(version)

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
