"""What processes add to their logs, passed on line by line while they run."""

import contextlib
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from rpc.processes import Process

_POLL_SECONDS = 0.1


class FollowedLogs:
    """Context manager that passes on each line of the logs, in a thread; at its end, all that is left.

    Args:
        processes: The processes, to which others may be added meanwhile.
        show: Function that is called with a process's name and a line, always by one thread at a time.
    """

    def __init__(self, processes: Sequence[Process], show: Callable[[str, str], None]) -> None:
        self._processes = processes
        self._show = show
        self._read: defaultdict[str, int] = defaultdict(int)  # bytes of the log, by name
        self._begun: defaultdict[str, bytes] = defaultdict(bytes)  # of a line that has not ended, likewise
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="evenpace-logs", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        self._look()
        for name, line in self._begun.items():
            if line:
                self._pass_on(name, line)

    def _follow(self) -> None:
        while not self._ended.wait(_POLL_SECONDS):
            self._look()

    def _look(self) -> None:
        for process in [*self._processes]:
            with contextlib.suppress(FileNotFoundError), process.log.open("rb") as stream:
                stream.seek(self._read[process.name])
                added = stream.read()
                self._read[process.name] += len(added)
                *lines, rest = (self._begun[process.name] + added).split(b"\n")
                self._begun[process.name] = rest
                for line in lines:
                    self._pass_on(process.name, line)

    def _pass_on(self, name: str, line: bytes) -> None:
        # Of a progress bar, which draws over itself, the last state is shown.
        self._show(name, line.decode(errors="replace").rstrip("\r").rpartition("\r")[2])
