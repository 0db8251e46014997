"""Processes of the lab that tell this one how they get on: in JSON lines, until their standard input ends."""

import json
import queue
import sys
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from evenpace.processes import Process

ENDED = "ended"  # the key under which a process's exit status is put after its last line


class Speaker:
    """A context manager for one such process; a thread hears it out, so that it is never held up.

    Args:
        module: What is run, with `config` as its one argument.
        config: As the module reads it.
        said: Where what it says is put, a mapping for each line, then its exit status under `ENDED`, with the
            end of what it logged.
    """

    def __init__(self, module: str, config: str, said: "queue.Queue[dict[str, Any]]") -> None:
        self._command = [sys.executable, "-m", module, config]
        self._said = said

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="evenpace-speaker-")
        log = Path(self._folder.name) / "log"
        self._process = Process(self._command[2], self._command, log, listens=True, hears=True)
        self._process.start()
        threading.Thread(target=self._hear, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.end()
        self._folder.cleanup()

    def tell(self, line: str) -> None:
        """Let it read a line."""
        assert self._process.popen is not None
        assert self._process.popen.stdin is not None
        self._process.popen.stdin.write(f"{line}\n".encode())
        self._process.popen.stdin.flush()

    def finish(self) -> None:
        """End its standard input."""
        assert self._process.popen is not None
        assert self._process.popen.stdin is not None
        self._process.popen.stdin.close()

    def wait(self, seconds: float) -> None:
        """Wait for its end.

        Raises:
            TimeoutExpired: It has not ended after so many seconds.
        """
        assert self._process.popen is not None
        self._process.popen.wait(seconds)

    def _hear(self) -> None:
        popen = self._process.popen
        assert popen is not None
        assert popen.stdout is not None
        for line in popen.stdout:
            self._said.put(json.loads(line))
        self._said.put({ENDED: popen.wait(), "log": self._process.tail()})


def say(**what: Any) -> None:
    """Tell the process that started this one something."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()
