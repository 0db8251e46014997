"""Wrapper that runs `evenpace` with a thread which keeps writing the time as this process sees it.

From outside it cannot be seen whether a process's clock has jumped for the process itself.
Used as `python -m lab.chaos.witness FILE COMMAND ARGUMENTS`.
"""

import os
import runpy
import select
import sys
import threading
import time
from pathlib import Path
from typing import SupportsIndex

from lab.chaos import clocks

_EVERY_SECONDS = 0.25


def watch(path: Path) -> None:
    """Write this process's id and its wall clock's seconds, over and over."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    while True:
        os.pwrite(file, f"{os.getpid():10d} {time.time():20.3f}\n".encode(), 0)
        time.sleep(_EVERY_SECONDS)


def read(path: Path) -> tuple[int, float] | None:
    """Return process id and wall clock, in seconds, as written last; None before that."""
    try:
        pid, seconds = path.read_text().split()
        return int(pid), float(seconds)
    except (OSError, ValueError):
        return None


def sleep(seconds: float | SupportsIndex) -> None:
    """Sleep, in the place of `time.sleep`.

    That calls clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME), which fails with EINVAL under libfaketime
    0.9.10 where it is to leave the monotonic clock alone.
    """
    select.select((), (), (), float(seconds))


if __name__ == "__main__":
    time.sleep = sleep
    clocks.unlink_shared_memory()
    threading.Thread(target=watch, args=(Path(sys.argv[1]),), name="witness", daemon=True).start()
    sys.argv = ["evenpace", *sys.argv[2:]]
    runpy.run_module("evenpace", run_name="__main__", alter_sys=True)
