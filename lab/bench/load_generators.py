"""Processes that are the workers of a load benchmark, and what they report."""

import contextlib
import json
import os
import queue
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Annotated, Any

from idl.errors import UnavailableError
from idl.settings import Checked, Setting
from lab.bench.connected_workers import SAMPLES_PER_WORKER
from lab.bench.load_rounds import Rounds
from lab.script_options import as_argument
from rpc.address import Address
from rpc.processes import Process, end_process


@dataclass(frozen=True)
class LoadConfig(Checked):
    """The load (InvalidRequestError: a value is not allowed)."""

    jobs: Annotated[int, Setting("Jobs at once.", least=1)] = 10
    workers: Annotated[int, Setting("Of each job.", least=1)] = 100
    seconds: Annotated[float, Setting("", name="minutes", unit=60, above=0, below=inf)] = 60.0
    compute: Annotated[
        float,
        Setting(
            "Seconds from an answer to the next report; 0: at once, so that the manager is never idle.",
            least=0,
            below=inf,
        ),
    ] = 0.0
    processes: Annotated[
        int | None,
        Setting(
            "Processes that the workers are spread over, at most one for each of a job's.  "
            "[default: one less than there are CPUs]",
            name="generators",
            least=1,
        ),
    ] = None
    seed: Annotated[int, Setting("Of the workers' speeds.", least=0)] = 0
    manager_options: tuple[str, ...] = ()  # more options of `evenpace manager`

    @property
    def generators(self) -> int:
        """Processes that the workers are spread over."""
        return min(self.workers, self.processes or max(1, (os.cpu_count() or 1) - 1))

    @property
    def connections(self) -> int:
        """One for each worker."""
        return self.jobs * self.workers

    @property
    def names(self) -> tuple[str, ...]:
        """The jobs'."""
        return tuple(f"load-{number}" for number in range(self.jobs))


_START_SECONDS = 600.0  # seconds until all workers have joined, at most
_ENDED = "ended"  # key of a process's exit status, which is put after its last line
SILENCE_SECONDS = 120.0  # seconds without a round of any job that count as a hang


class Generators:
    """The processes that are the workers; a context manager."""

    def __init__(self, config: LoadConfig, address: Address) -> None:
        self._config = config
        self._address = address
        self._said: queue.Queue[dict[str, Any]] = queue.Queue()
        self._processes: list[Process] = []
        self._listeners: list[threading.Thread] = []
        self._stack = contextlib.ExitStack()
        # Rounds that they have reported so far.
        self.rounds = Rounds(SAMPLES_PER_WORKER * config.workers, config.generators)
        self.errors: Counter[str] = Counter()  # number of errors by message

    def __enter__(self) -> "Generators":
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def listen(self, seconds: float) -> None:
        """Take in the generators' lines for some seconds."""
        until = time.monotonic() + seconds
        silent_since = time.monotonic()
        while (left := until - time.monotonic()) > 0:
            try:
                self._take(self._said.get(timeout=min(left, 1.0)))
                silent_since = time.monotonic()
            except queue.Empty:
                if time.monotonic() - silent_since > SILENCE_SECONDS:
                    raise UnavailableError(f"no round was finished for {SILENCE_SECONDS:g} s") from None

    def finish(self) -> None:
        """End the generators, and take in their last lines."""
        popens = [process.popen for process in self._processes if process.popen is not None]
        for popen in popens:
            assert popen.stdin is not None
            popen.stdin.close()
        for popen in popens:
            popen.wait(SILENCE_SECONDS)
        for listener in self._listeners:
            listener.join()
        while not self._said.empty():
            self._take(self._said.get())

    def _start(self) -> None:
        config, first = self._config, 0
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="evenpace-load-")))
        for number in range(config.generators):
            count = config.workers * (number + 1) // config.generators - first
            options = as_argument(
                manager=self._address,
                jobs=config.names,
                first=first,  # number of its first worker in every job
                count=count,  # how many of each job's workers it has
                workers=config.workers,
                compute=config.compute,
                seed=config.seed,
            )
            first += count
            line = [sys.executable, "-m", "lab.bench.load_workers", options]
            name = f"generator-{number}"
            process = Process(name, line, folder / f"{name}.log", listens=True, hears=True)
            self._processes.append(self._stack.enter_context(process))
            listener = threading.Thread(target=self._hear, args=(process,), daemon=True)
            listener.start()
            self._listeners.append(listener)
            # Its last line is heard before its pipes are closed and its log is removed.
            self._stack.callback(listener.join)
            assert process.popen is not None
            self._stack.callback(end_process, process.popen)
        for _ in self._processes:
            self._expect("joined")
        for process in self._processes:
            assert process.popen is not None
            assert process.popen.stdin is not None
            process.popen.stdin.write(b"go\n")
            process.popen.stdin.flush()

    def _expect(self, what: str) -> None:
        try:
            said = self._said.get(timeout=_START_SECONDS)
        except queue.Empty:
            raise UnavailableError(f"the workers had not {what} after {_START_SECONDS:g} s") from None
        if what not in said:
            raise UnavailableError(f"a load generator failed: {said}")

    def _hear(self, process: Process) -> None:
        assert process.popen is not None
        assert process.popen.stdout is not None
        for line in process.popen.stdout:
            self._said.put(json.loads(line))
        self._said.put({_ENDED: process.popen.wait(), "log": process.tail()})

    def _take(self, said: dict[str, Any]) -> None:
        if "round" in said:
            self.rounds.add(*said["round"])
        elif "errors" in said:
            self.errors.update(said["errors"])
        elif "failed" in said or said.get(_ENDED):
            raise UnavailableError(f"a load generator failed: {said}")
