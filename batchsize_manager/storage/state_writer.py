"""The writer of a manager's state: one thread, so that no barrier round waits for a disk.

The event loop hands changes over and goes on. The thread gathers them for some milliseconds, unless an answer
waits for them, and writes them in one transaction. While that fails, as on a full disk, training goes on: the
thread tries again, and records that are too many to be held in memory are left out and counted. A change that
cannot be written at all is reported and left out. The file itself is written by `state_file`.
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
from pathlib import Path
from typing import IO

from batchsize_manager.storage.changes import Change, Completed, Ended, Logged, compact, weight
from batchsize_manager.storage.retention import Retention
from batchsize_manager.storage.state_file import Refused, StateFile
from batchsize_manager.storage.state_format import STATE_FILE, StateError
from idl.folders import MANAGER_LOCK, SHARD_LOCK
from rpc.counters import Histogram
from rpc.periodic import Periodic

log = logging.getLogger(__name__)

_PENDING = 400_000  # records of workers' iterations that may wait to be written
_GATHER_SECONDS = 0.05  # a process that is killed loses these; its workers make up for what they reported
_RETRY_SECONDS = 1.0
_LONGEST_WAIT = 1.0  # seconds that an answer waits for the disk at most
_CLOSE_SECONDS = 10.0


class _Gate:
    """A function to be called in the event loop once all changes put before it are written."""

    def __init__(self, loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
        self._loop = loop
        self._function = function
        self._timer = loop.call_later(_LONGEST_WAIT, self._open)
        self._opened = False

    def open(self) -> None:
        """Call the function soon; from any thread."""
        with contextlib.suppress(RuntimeError):  # the event loop has ended
            self._loop.call_soon_threadsafe(self._open)

    def _open(self) -> None:
        if not self._opened:
            self._opened = True
            self._timer.cancel()
            self._function()


class _Close:
    """The last thing in the queue."""


class StateWriter:
    """The state in one folder, which belongs to this process as long as the writer is open.

    All methods are for the event loop's thread, and none but `close` waits.

    Args:
        folder: The folder, which is made if there is none.
        retention: Limits of what is kept.

    Raises:
        StateError: Another process has the folder, it is a shard's, or the file in it cannot be used; the
            message says what to do.
    """

    def __init__(self, folder: Path, retention: Retention | None = None) -> None:
        self._retention = retention or Retention()
        self._lock = _lock(folder)
        try:
            self._file = StateFile(folder / STATE_FILE)
        except BaseException:
            self._lock.close()
            raise
        self.reader = self._file.reader  # a reader of the state, for use before the first change is put
        self.path = folder / STATE_FILE  # the file
        self._queue: queue.SimpleQueue[Change | _Gate | _Close] = queue.SimpleQueue()
        # Weights: each is counted up by one thread alone, the loop's or the writer's.
        self._put = 0
        self._done = 0
        self._left_out = 0
        self._behind = False
        self._reported: set[tuple[str, type[Change]]] = set()  # run and kind of what was left out
        self._unwritten_since: float | None = None
        self.writes = Histogram()  # seconds that transactions took
        self.left_out = 0  # iterations whose records were too many to be held in memory
        self._notices: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._closed = False
        self.has_ended = False  # whether nothing is written any more; from any thread
        self._closing = threading.Event()
        self._awaited = threading.Event()  # something waits for the changes to be written
        self._pruning = Periodic(f"deleting old iterations and runs from {self.path}")
        self._thread: threading.Thread | None = None  # once there is something to write

    def put(self, change: Change) -> None:
        """Have a change written soon; while too many wait, records and events are left out."""
        if self._closed or self.has_ended:
            return
        heavy = weight(change)
        if isinstance(change, Completed | Logged) and self._put - self._done + heavy > _PENDING:
            self._left_out += isinstance(change, Completed)
            self.left_out += isinstance(change, Completed)
            return
        self._put += heavy
        self._hand_over(change)

    def after_commit(self, function: Callable[[], None]) -> None:
        """Call a function in the running loop once all changes put so far are written.

        It is called after a second at the latest, and at once while writing fails.
        """
        if self._closed or self._behind:
            function()
        else:
            self._hand_over(_Gate(asyncio.get_running_loop(), function))

    @property
    def pending(self) -> int:
        """The number of records that wait to be written; from any thread."""
        return max(0, self._put - self._done)

    @property
    def is_behind(self) -> bool:
        """Return whether writing fails at present; from any thread."""
        return self._behind

    @property
    def lag(self) -> float:
        """The seconds for which the oldest unwritten change has waited; from any thread."""
        since = self._unwritten_since
        return 0.0 if since is None else time.monotonic() - since

    def notices(self) -> list[str]:
        """Return messages for users since the last call."""
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
            log.error("%s: the disk does not answer; the last changes may be lost", self.path)
        else:
            self._lock.close()

    def _hand_over(self, item: "Change | _Gate | _Close") -> threading.Thread:
        self._queue.put(item)
        if isinstance(item, _Gate | _Close):
            self._awaited.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="state-writer", daemon=True)
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
                log.error("%s: %d changes could not be written", self.path, len(changes))
        except Exception as error:  # noqa: BLE001 - it would go unseen in this thread
            self._notify(
                logging.ERROR,
                f"the manager's state is not written to {self.path} any more ({type(error).__name__}: "
                f"{error}): training goes on, but a manager that is started now would not know of what "
                f"happens from here on; start it again once its jobs have a checkpoint",
                exc_info=True,
            )
        finally:
            self._behind = self.has_ended = True
            self._file.close()

    def _take(self, wait: bool) -> list[Change | _Gate | _Close]:
        """Return all items in the queue; if `wait`, wait for one first, and gather others."""
        taken = [self._queue.get()] if wait else []
        if taken and not isinstance(taken[0], _Gate | _Close):
            self._awaited.wait(_GATHER_SECONDS)
        self._awaited.clear()
        with contextlib.suppress(queue.Empty):
            while True:
                taken.append(self._queue.get_nowait())
        return taken

    def _write(self, changes: list[Change]) -> bool:
        """Write changes and return whether that succeeded; log the first failure and the end of it."""
        began = time.perf_counter()
        try:
            refused = self._file.apply(changes)
        except (sqlite3.Error, MemoryError) as error:
            if not self._behind:
                self._behind = True
                self._notify(
                    logging.WARNING,
                    f"the manager's state cannot be written to {self.path} ({error}); training goes on, but "
                    f"a manager that is started now would not know of what happens from here on",
                )
            return False
        self.writes.add(time.perf_counter() - began)
        for one in refused:
            self._report(one)
        if self._behind:
            self._behind = False
            left_out, self._left_out = self._left_out, 0
            lost = (
                f"; {left_out} iterations' records were too many to be held and are missing"
                if left_out
                else ""
            )
            self._notify(logging.INFO, f"the manager's state is written to {self.path} again{lost}")
        return True

    def _report(self, refused: Refused) -> None:
        """Report a change that was left out, unless one of its kind was in the same run."""
        run, kind = refused.change.run, type(refused.change)
        if (run, kind) in self._reported:
            return
        self._reported.add((run, kind))
        of = f"job {refused.job}" if refused.job is not None else f"run {run}, whose job is not in the file"
        self._notify(
            logging.WARNING,
            f"{of}: {kind.__name__} cannot be written to {self.path} and is left out ({refused.why}); a "
            f"manager that is started again would not know of that",
        )

    def _prune(self) -> bool:
        """Delete a part of what is beyond the limits; return whether there may be more."""
        with self._pruning:
            if self._is_too_long:
                self._file.shorten(self._retention.nbytes)
                return True
            return self._file.prune(self._retention.runs, self._retention.oldest(time.time()))
        self._closing.wait(_RETRY_SECONDS)
        return False

    @property
    def _is_too_long(self) -> bool:
        """Return whether a run's iterations take more room than they may."""
        return self._file.is_longer(self._retention.nbytes or math.inf)

    def _notify(self, level: int, notice: str, exc_info: bool = False) -> None:
        log.log(level, "%s", notice, exc_info=exc_info)
        self._notices.put(notice)


def _lock(folder: Path) -> IO[str]:
    """Lock the folder until the returned file is closed, or the process has ended."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / SHARD_LOCK).exists():
            raise StateError(
                f"--state {folder} is the folder of a shard of the parameter server: give each manager a "
                f"folder of its own"
            )
        stream = (folder / MANAGER_LOCK).open("a+")
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
