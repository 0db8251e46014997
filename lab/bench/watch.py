"""Resources that a process uses while a benchmark runs: CPU, memory, file descriptors."""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import psutil

_MIB = 2**20


@dataclass(frozen=True)
class Sample:
    """Resources of a process at one moment."""

    at: float  # seconds since the watch began
    rss: int  # resident memory in bytes
    cpu: float  # seconds of CPU time, user's and system's, that it had used
    files: int  # open file descriptors


class Watch:
    """Context manager that takes samples at an interval, in a thread, and one at its end."""

    def __init__(self, pid: int, interval: float = 1.0) -> None:
        self._process = psutil.Process(pid)
        self._interval = interval
        self._began = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"watch {pid}", daemon=True)
        self.samples: list[Sample] = []  # in their order; the last may be of a process that has just ended

    def __enter__(self) -> Self:
        self._take()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()
        self._take()

    @property
    def is_alive(self) -> bool:
        """Return whether the process runs."""
        return self._process.is_running() and self._process.status() != psutil.STATUS_ZOMBIE

    def _run(self) -> None:
        while not self._ended.wait(self._interval):
            self._take()

    def _take(self) -> None:
        try:
            with self._process.oneshot():
                times = self._process.cpu_times()
                rss = self._process.memory_info().rss
                files = self._process.num_fds()
        except psutil.Error:
            return  # it has ended, which its exit status shows
        self.samples.append(Sample(time.monotonic() - self._began, rss, times.user + times.system, files))


def summary(samples: Sequence[Sample], settled_after: float = 60.0) -> dict[str, Any]:
    """Return a summary of samples, for JSON: cores used on average, MiB of memory, and file descriptors.

    Memory should be flat after `settled_after` seconds, or half of the time where that was shorter; its slope
    is that of a line through all samples since then.
    """
    span = samples[-1].at - samples[0].at
    begin = samples[0].at + min(settled_after, span / 2)
    settled = [sample for sample in samples if sample.at >= begin]
    return {
        "cores": (samples[-1].cpu - samples[0].cpu) / max(span, 1e-9),
        "rss_mib": {
            "first": samples[0].rss / _MIB,
            "settled": settled[0].rss / _MIB,
            "end": samples[-1].rss / _MIB,
            "most": max(sample.rss for sample in samples) / _MIB,
            "settled_after_s": begin,
            "slope_per_minute": _slope(settled),
        },
        "files": {"most": max(sample.files for sample in samples), "end": samples[-1].files},
        "samples": [[round(s.at, 2), s.rss // 1024, round(s.cpu, 2), s.files] for s in samples],
    }


def _slope(samples: Sequence[Sample]) -> float:
    """Return the slope of memory over time by least squares, in MiB a minute."""
    if len(samples) < 2:
        return 0.0
    minutes = np.array([sample.at for sample in samples]) / 60
    mib = np.array([sample.rss for sample in samples]) / _MIB
    return float(np.polyfit(minutes, mib, 1)[0])
