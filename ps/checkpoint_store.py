"""The folder of a shard process: the jobs' checkpoints and ledgers, written and read by background threads.

Each job has a thread of its own, so that a disk that stalls for one blocks no other. This module knows files
and how long they are kept, but neither gradients nor workers. Failures are logged, and training goes on with
the checkpoints that there are.
"""

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import re
import time
from collections.abc import Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from idl.errors import UnavailableError
from idl.folders import MANAGER_LOCK, SHARD_LOCK
from ps import checkpoint as files
from ps.checkpoint import ShardCheckpoint, UnreadableError
from ps.log_fields import log_fields
from rpc.periodic import Periodic
from rpc.writing import writing

log = logging.getLogger(__name__)

_LATEST = 3  # newest checkpoints of a job that are always kept
_SUFFIX = ".checkpoint"
_PART = ".part"  # suffix of a file that is being written
_JOB_FOLDER = re.compile(r"[A-Za-z0-9_-]{0,60}-[0-9a-f]{16}")  # see `_folder_name`
_JOB_FILE = re.compile(rf"\d{{12,}}({re.escape(_SUFFIX)}|{re.escape(_PART)})")  # see `JobStore._path`


class CheckpointStore:
    """The folder of one shard process.

    Args:
        folder: The folder; it is created if it does not exist.
        ledger: The folder for files that record each job's steps; None for no such files.

    Raises:
        UnavailableError: Another process uses the folder, or it is a manager's.
        OSError: The folder cannot be used.
    """

    def __init__(self, folder: Path, ledger: Path | None = None) -> None:
        self._folder = folder
        self._ledger = ledger
        folder.mkdir(parents=True, exist_ok=True)
        if ledger is not None:
            ledger.mkdir(parents=True, exist_ok=True)
        if (folder / MANAGER_LOCK).exists():
            raise UnavailableError(
                f"{folder} is the folder of a manager: give each shard a folder of its own"
            )
        self._lock = (folder / SHARD_LOCK).open("a")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._lock.close()
            raise UnavailableError(
                f"{folder} is in use by another shard of the parameter server: each needs a folder of its own"
            ) from error
        self._names = {path.name for path in folder.iterdir()}  # of the jobs' folders that may exist
        self._thread = _thread()
        self._removing = Periodic("removing old jobs from the folder")

    def job(self, name: str) -> "JobStore":
        """Return the store of one job; its folder is created with its first checkpoint.

        Raises:
            UnavailableError: There can be no thread for it, or its folder cannot be read at present.
        """
        own = _folder_name(name)
        ledger = self._ledger / f"{own}.jsonl" if self._ledger is not None else None
        found = own in self._names
        self._names.add(own)
        return JobStore(self._folder / own, name, ledger, found=found)

    def has(self, name: str) -> bool:
        """Return whether the folder may hold something of a job."""
        return _folder_name(name) in self._names

    def load(self, name: str) -> "Future[tuple[JobStore, ShardCheckpoint] | None]":
        """Read a job's newest checkpoint in the background; the result is None if there is none.

        It is an UnavailableError if there may be one which cannot be read now.
        """
        return self._thread.submit(self._load, name)

    def remove_old(self, seconds: float, but: Collection[str]) -> None:
        """Remove, in the background, the folders of jobs that have not been written to for long.

        Args:
            seconds: Age of the last write from which on a folder is removed.
        """
        self._thread.submit(self._remove_old, seconds, {_folder_name(name) for name in but})

    def close(self) -> None:
        """Wait for the background work, and release the folder for other processes."""
        self._thread.shutdown(wait=True)
        self._lock.close()

    def _load(self, name: str) -> "tuple[JobStore, ShardCheckpoint] | None":
        with contextlib.ExitStack() as stack:
            store = self.job(name)
            stack.callback(store.close, wait=False)
            checkpoint = store.newest()
            if checkpoint is None:
                self._names.discard(_folder_name(name))
                return None
            stack.pop_all()
            return store, checkpoint

    def _remove_old(self, seconds: float, spared: Collection[str]) -> None:
        with self._removing:
            for path in self._folder.iterdir():
                if path.name in spared or not _JOB_FOLDER.fullmatch(path.name) or path.is_symlink():
                    continue
                with contextlib.suppress(OSError):
                    checkpoints = list(path.iterdir())
                    if not all(_JOB_FILE.fullmatch(file.name) for file in checkpoints):
                        continue  # others' files are among them
                    written = max(file.stat().st_mtime for file in (path, *checkpoints))
                    if time.time() - written > seconds:
                        log.info("%s: removed, the job has had no worker for long", path)
                        for file in checkpoints:
                            file.unlink()
                        path.rmdir()
                        self._names.discard(path.name)


class JobStore:
    """The checkpoints and the ledger of one job.

    Args:
        folder: The folder of this job's checkpoints.
        ledger: The ledger's file; None for no ledger.
        found: Whether the folder may hold checkpoints already.

    Attributes:
        versions: Versions of which there is a checkpoint, ascending. One of them may prove damaged when it is
            read, and counts no more.
        tried: The last version of which a checkpoint was written, or could not be; -1 before.
        written: Checkpoints that this process has written.
        failed: Checkpoints that it could not write.
        written_bytes: Bytes of the checkpoints that it has written.
    """

    def __init__(self, folder: Path, job: str, ledger: Path | None, *, found: bool = True) -> None:
        self._folder = folder
        self._job = job
        self._thread = _thread()
        self._ledger = ledger
        self._is_kept = False  # whether the folder is there for good
        self._writing_version: int | None = None  # the version that is being written
        self.written = self.failed = self.written_bytes = 0
        self.writing = 0.0  # seconds that it took to write them
        # Seconds on the monotonic clock when the last was written; None before.
        self.written_at: float | None = None
        self.versions = self._found() if found else ()  # changed by the job's thread alone
        self._unread: set[int] = set()  # versions whose files may be there, and do not count
        self.tried = max(self.versions, default=-1)
        self._common = -1  # the latest version of which all shards have a checkpoint, as far as is known
        self._tried_by_all: int | None = None  # no other up to this one will be; None where nobody says

    @property
    def is_writing(self) -> bool:
        """Return whether a checkpoint is being written."""
        return self._writing_version is not None

    def save(self, checkpoint: ShardCheckpoint) -> "Future[None] | None":
        """Copy a checkpoint and then write it, in the background, after the one before.

        Returns:
            A future that is done once the tensors have been copied; None if a checkpoint of this version
            exists or is being written.
        """
        version = checkpoint.snapshot.version
        if version in (*self.versions, self._writing_version):
            return None
        self._writing_version = version
        copied: Future[None] = Future()
        self._thread.submit(self._copy_and_write, checkpoint, copied)
        return copied

    def go_back(self, version: int) -> "Future[ShardCheckpoint]":
        """Read a checkpoint in the background, as `read` does, and remove later ones."""
        return self._thread.submit(self._go_back, version)

    def has_after(self, version: int) -> bool:
        """Return whether there may be checkpoints of later versions, some of which count no more."""
        return any(each > version for each in (*self.versions, *self._unread))

    def remove_after(self, version: int) -> "Future[None]":
        """Remove checkpoints of later versions in the background, those still to be written included."""
        return self._thread.submit(self._remove_after, version)

    def close(self, *, wait: bool = True) -> None:
        """Accept no more work; what was accepted is still written.

        Args:
            wait: Whether to return only once it is written.
        """
        self._thread.shutdown(wait=wait)

    def mark_common(self, version: int, tried_by_all: int) -> None:
        """Note that all shards have a checkpoint of this version, which is therefore kept.

        Args:
            version: The version; -1 if there is none.
            tried_by_all: The last of which every shard has written a checkpoint, or failed to; -1 likewise.
        """
        self._common = max(version, self._common)
        known = -1 if self._tried_by_all is None else self._tried_by_all
        self._tried_by_all = max(tried_by_all, known)

    def read(self, version: int) -> ShardCheckpoint:
        """Read the checkpoint of a version; one that is missing or damaged counts no more.

        Raises:
            UnreadableError: It is missing or damaged, or it alone cannot be read.
            UnavailableError: None can be read at present: too many files are open, or the disk is away.
        """
        try:
            checkpoint = files.read(self._path(version))
            if (checkpoint.job, checkpoint.snapshot.version) != (self._job, version):
                raise UnreadableError(f"{self._path(version)} is of job {checkpoint.job!r}")
        except (OSError, UnreadableError) as error:
            others = [v for v in self.versions if v != version]
            damaged = isinstance(error, UnreadableError | FileNotFoundError)
            if not damaged and not any(self._is_whole(other) for other in others):
                raise UnavailableError(f"version {version} cannot be read at present: {error}") from error
            log.warning(
                "job %s: version %d cannot be read, an earlier checkpoint will have to do: %s",
                self._job,
                version,
                error,
                extra=log_fields(self._job, iteration=version),
            )
            self.versions = tuple(others)
            self._unread.add(version)
            raise UnreadableError(f"version {version} cannot be read: {error}") from error
        return checkpoint

    def newest(self) -> ShardCheckpoint | None:
        """Read the newest checkpoint that is readable; None if there is none.

        Raises:
            UnavailableError: As `read` raises.
        """
        for version in reversed(self.versions):
            with contextlib.suppress(UnreadableError):
                return self.read(version)
        return None

    def append_to_ledger(self, record: Mapping[str, Any]) -> None:
        """Append a record to the ledger in the background, if there is one."""
        if self._ledger is not None:
            self._thread.submit(self._append, self._ledger, json.dumps(record).encode() + b"\n")

    def _go_back(self, version: int) -> ShardCheckpoint:
        checkpoint = self.read(version)
        self._remove_after(version)
        return checkpoint

    def _remove_after(self, version: int) -> None:
        self._common = min(self._common, version)
        self._tried_by_all = None if self._tried_by_all is None else min(self._tried_by_all, version)
        self.tried = min(self.tried, version)
        later = {v for v in (*self.versions, *self._unread) if v > version}
        self.versions = tuple(v for v in self.versions if v <= version)
        with contextlib.suppress(UnavailableError):  # those that could not be read or flushed do not count
            later |= {v for v in self._found() if v > version}
        self._unread = {v for v in self._unread if v <= version} | later
        for each in later:
            self._remove(each)
        if later:
            with contextlib.suppress(OSError):
                _sync(self._folder)

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
            if self._writing_version == version:
                self._writing_version = None
                self.tried = version

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
            self._unread.discard(version)
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
        """Remove checkpoints that no recovery can need.

        The newest stay, the newest that all shards have, and those that all may have some day. So there is
        always one that all have, whichever writes fail: a shard removes the former once it is told of a later
        one, which all had by then; and no shard removes that before it is told of a later one again.
        """
        older = [v for v in self.versions[:-_LATEST] if v != self._common]
        retired = {v for v in older if self._tried_by_all is None or v <= self._tried_by_all}
        self.versions = tuple(v for v in self.versions if v not in retired)
        for version in retired:
            self._remove(version)

    def _append(self, ledger: Path, line: bytes) -> None:
        try:
            with writing(ledger), ledger.open("ab+") as stream:
                if stream.tell():
                    stream.seek(-1, os.SEEK_END)
                    if stream.read(1) != b"\n":  # the process was killed while it wrote the last line
                        line = b"\n" + line
                stream.write(line)
        except OSError as error:
            log.error("job %s: the ledger misses a line: %s", self._job, error, extra=log_fields(self._job))

    def _found(self) -> tuple[int, ...]:
        """Return the versions that the folder has files of, ascending, and remove incomplete files."""
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise UnavailableError(f"{self._folder} cannot be read at present: {error}") from error
        versions = []
        for path in map(self._folder.joinpath, names):
            if not _JOB_FILE.fullmatch(path.name):
                continue
            if path.suffix == _PART:
                with contextlib.suppress(OSError):
                    path.unlink()
            else:
                versions.append(int(path.stem))
        return tuple(sorted(versions))

    def _is_whole(self, version: int) -> bool:
        try:
            files.check(self._path(version))
        except (OSError, UnreadableError):
            return False
        return True

    def _make_folder(self) -> None:
        if not (self._is_kept and self._folder.is_dir()):
            self._folder.mkdir(exist_ok=True)
            _sync(self._folder.parent)  # an earlier process may have died just before
            self._is_kept = True

    def _path(self, version: int) -> Path:
        return self._folder / f"{version:012d}{_SUFFIX}"

    def _remove(self, version: int) -> None:
        with contextlib.suppress(OSError):
            self._path(version).unlink(missing_ok=True)
            self._unread.discard(version)


def _thread() -> ThreadPoolExecutor:
    """Return a thread for background work, which runs already.

    An executor whose thread cannot be started keeps what it was given, undone.

    Raises:
        UnavailableError: The thread cannot be started.
    """
    executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoints")
    try:
        executor.submit(lambda: None)
    except RuntimeError as error:
        raise UnavailableError(f"no thread for checkpoints: {error}") from error
    return executor


def _folder_name(job: str) -> str:
    """Return a readable folder name, different for each job whatever characters its name has."""
    readable = re.sub(r"[^A-Za-z0-9_-]+", "_", job)[:60]
    return f"{readable}-{hashlib.sha256(job.encode()).hexdigest()[:16]}"


def _sync(folder: Path) -> None:
    """Flush a folder's entries to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
