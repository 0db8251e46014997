"""Keeps what a manager must remember: one thread writes, so that no barrier round waits for a disk.

The event loop hands changes over and goes on; the thread writes all that has come, in one transaction. While
that fails, as on a full disk, training goes on: the thread tries again, and what is too much to be held in
memory is left out and told. How the file looks is known to `state_file`.
"""

import asyncio
import contextlib
import fcntl
import logging
import math
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from batchsize_manager.storage.changes import Change, Completed, Ended, Said, compact, weight
from batchsize_manager.storage.state_file import StateFile
from batchsize_manager.storage.state_format import STATE_FILE, StateError
from rpc.counters import Histogram
from rpc.periodic import Periodic

log = logging.getLogger(__name__)

_LOCK_FILE = "manager.lock"
_PENDING = 400_000  # records of workers' iterations that may wait to be written
_RETRY_SECONDS = 1.0
_LONGEST_WAIT = 1.0  # seconds that an answer is held back for the disk's sake
_CLOSE_SECONDS = 10.0
_DAY = 86400.0


@dataclass(frozen=True)
class Retention:
    """How much is remembered.

    Attributes:
        runs: Of those that have ended so many, the latest.
        days: These for so long at most; None for no limit.
        nbytes: Of the workers' records in each run's iterations, which the oldest make room for; 0 for no
            limit.

    Raises:
        ValueError: A number is out of its range.
    """

    runs: int = 100
    days: float | None = None
    nbytes: int = 2**29

    def __post_init__(self) -> None:
        if self.runs < 0:
            raise ValueError(f"keep-runs {self.runs}: must be at least 0")
        if self.days is not None and not 0 <= self.days < float("inf"):
            raise ValueError(f"keep-days {self.days}: must be at least 0")
        if self.nbytes < 0:
            raise ValueError(f"keep-mib {self.nbytes / 2**20}: must be at least 0")

    def oldest(self, now: float) -> float:
        """What ended before is forgotten; like `now` in seconds since 1970."""
        return 0.0 if self.days is None else now - self.days * _DAY


class _Gate:
    """Something to be done in the event loop once what was put before it is written."""

    def __init__(self, loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
        self._loop = loop
        self._function = function
        self._timer = loop.call_later(_LONGEST_WAIT, self._open)
        self._opened = False

    def open(self) -> None:
        """From any thread."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._open)

    def _open(self) -> None:
        if not self._opened:
            self._opened = True
            self._timer.cancel()
            self._function()


class _Close:
    """The last thing in the queue."""


class Store:
    """The state in one folder, which is this process's as long as the store is open.

    All methods are for the event loop's thread, and none waits, but for `close`.

    Args:
        folder: Made if it is not there.
        retention: What is forgotten.

    Attributes:
        reader: Of what is remembered; for use before the first change is put, and not after.
        writes: Seconds that transactions took.
        left_out: Iterations whose records were too many to be held.

    Raises:
        StateError: Another process has the folder, or the file in it cannot be used; says what to do.
    """

    def __init__(self, folder: Path, retention: Retention | None = None) -> None:
        self._retention = retention or Retention()
        self._lock = _lock(folder)
        try:
            self._file = StateFile(folder / STATE_FILE)
        except BaseException:
            self._lock.close()
            raise
        self.reader = self._file.reader
        self._path = folder / STATE_FILE
        self._queue: queue.SimpleQueue[Change | _Gate | _Close] = queue.SimpleQueue()
        # Weights: each is counted up by one thread alone, the loop's or the writer's.
        self._put = 0
        self._done = 0
        self._left_out = 0
        self._behind = False
        self._unwritten_since: float | None = None
        self.writes = Histogram()
        self.left_out = 0
        self._notices: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._closed = False
        self._closing = threading.Event()
        self._pruning = Periodic(f"deleting old iterations and runs from {self._path}")
        self._thread: threading.Thread | None = None  # once there is something to write

    def put(self, change: Change) -> None:
        """Have a change written soon; where too much waits to be written, records and events are left out."""
        if self._closed:
            return
        heavy = weight(change)
        if isinstance(change, Completed | Said) and self._put - self._done + heavy > _PENDING:
            self._left_out += isinstance(change, Completed)
            self.left_out += isinstance(change, Completed)
            return
        self._put += heavy
        self._hand_over(change)

    def after_commit(self, function: Callable[[], None]) -> None:
        """Call a function in the running loop once all that was put is written.

        Where writing fails it is called anyway, and after a second at the latest.
        """
        if self._closed or self._behind:
            function()
        else:
            self._hand_over(_Gate(asyncio.get_running_loop(), function))

    @property
    def pending(self) -> int:
        """Records that wait to be written; from any thread."""
        return max(0, self._put - self._done)

    @property
    def is_behind(self) -> bool:
        """Whether writing fails; from any thread."""
        return self._behind

    @property
    def lag(self) -> float:
        """Seconds for which the oldest change has waited that is not written; from any thread."""
        since = self._unwritten_since
        return 0.0 if since is None else time.monotonic() - since

    def notices(self) -> list[str]:
        """What users should know of the store since they were asked for last."""
        notices = []
        with contextlib.suppress(queue.Empty):
            while True:
                notices.append(self._notices.get_nowait())
        return notices

    def close(self) -> None:
        """Write what was put, if the disk lets us, and release the folder."""
        if self._closed:
            return
        self._closed = True
        self._closing.set()
        thread = self._hand_over(_Close())
        thread.join(_CLOSE_SECONDS)
        if thread.is_alive():
            log.error("%s: the disk does not answer; the last changes may be lost", self._path)
        else:
            self._lock.close()

    def _hand_over(self, item: "Change | _Gate | _Close") -> threading.Thread:
        self._queue.put(item)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="store", daemon=True)
            self._thread.start()
        return self._thread

    # -- in the writer's thread

    def _run(self) -> None:
        changes: list[Change] = []
        prune, closing = True, False
        try:
            while not closing:
                taken = self._take(wait=not (changes or prune or self._is_too_long))
                closing = any(isinstance(item, _Close) for item in taken)
                new = [item for item in taken if not isinstance(item, _Gate | _Close)]
                waiting = changes + new
                changes = compact(waiting)
                if changes and self._unwritten_since is None:
                    self._unwritten_since = time.monotonic()
                self._done += sum(map(weight, waiting)) - sum(map(weight, changes))
                if changes and self._write(changes):
                    self._done += sum(map(weight, changes))
                    changes = []
                if not changes:
                    self._unwritten_since = None
                for item in taken:
                    if isinstance(item, _Gate):
                        item.open()
                if changes:
                    self._closing.wait(_RETRY_SECONDS)
                elif prune or self._is_too_long or any(isinstance(change, Ended) for change in new):
                    prune = self._prune()
            if changes:
                log.error("%s: %d changes could not be written", self._path, len(changes))
        except Exception:  # lest nobody hears of it
            log.exception("%s is not written any more", self._path)
        finally:
            self._behind = True
            self._file.close()

    def _take(self, wait: bool) -> list[Change | _Gate | _Close]:
        """All that is in the queue; where there is nothing, wait for it."""
        taken = [self._queue.get()] if wait else []
        with contextlib.suppress(queue.Empty):
            while True:
                taken.append(self._queue.get_nowait())
        return taken

    def _write(self, changes: list[Change]) -> bool:
        """Whether they are in the file now; the first failure and the end of it are told."""
        began = time.perf_counter()
        try:
            self._file.apply(changes)
        except (sqlite3.Error, StateError) as error:
            if not self._behind:
                self._behind = True
                self._tell(
                    logging.WARNING,
                    f"the manager's state cannot be written to {self._path} ({error}); training goes on, but "
                    f"a manager that is started now would not know of what happens from here on",
                )
            return False
        self.writes.add(time.perf_counter() - began)
        if self._behind:
            self._behind = False
            left_out, self._left_out = self._left_out, 0
            lost = (
                f"; {left_out} iterations' records were too many to be held and are missing"
                if left_out
                else ""
            )
            self._tell(logging.INFO, f"the manager's state is written to {self._path} again{lost}")
        return True

    def _prune(self) -> bool:
        """Forget a part of what is too much, or of the runs that ended long ago; whether there is more."""
        with self._pruning:
            if self._is_too_long:
                self._file.shorten(self._retention.nbytes)
                return True
            return self._file.prune(self._retention.runs, self._retention.oldest(time.time()))
        self._closing.wait(_RETRY_SECONDS)
        return False

    @property
    def _is_too_long(self) -> bool:
        """Whether a run's iterations take more room than they may."""
        return self._file.is_longer(self._retention.nbytes or math.inf)

    def _tell(self, level: int, notice: str) -> None:
        log.log(level, "%s", notice)
        self._notices.put(notice)


def _lock(folder: Path) -> IO[str]:
    """Hold the folder until the file that this gives is closed, or the process has ended."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stream = (folder / _LOCK_FILE).open("a+")
    except OSError as error:
        raise StateError(f"--state {folder} cannot be used: {error}") from error
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        stream.seek(0)
        owner = stream.read().strip() or "of unknown number"
        stream.close()
        raise StateError(
            f"--state {folder} is in use by another manager, process {owner}: stop that one, or give each "
            f"manager a folder of its own"
        ) from error
    with contextlib.suppress(OSError):  # on a full disk there is no number, and the lock holds all the same
        stream.truncate(0)
        stream.write(str(os.getpid()))
        stream.flush()
    return stream
