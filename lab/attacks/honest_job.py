"""The honest job that trains while others attack: workers of the chaos runs, on the services under attack.

With even splits and deterministic sums, two runs of as many iterations end with the same parameters to the
last bit.
"""

import contextlib
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from evenpace.local.cluster import LocalCluster
from evenpace.reports import files
from idl.errors import EvenpaceError, UnavailableError
from lab.attacks import honest_worker
from lab.observer import Observer
from lab.script_options import as_argument
from rpc.credentials import Credentials
from rpc.processes import ProcessFailedError

JOB = "honest"
WORKERS = 4
_START_SECONDS = 120.0  # seconds until the first iterations, at most
_AHEAD = 40  # iterations from the order to stop to the last one, which no worker has reached yet
_POLL_SECONDS = 0.2  # seconds between two looks at the job
_ANSWER_SECONDS = 30.0  # seconds in which the manager must answer


class HonestJob:
    """The honest job's workers and their progress; they end with the cluster.

    The job ends after the iteration `last`, or goes on until `finish`.
    """

    def __init__(
        self,
        cluster: LocalCluster,
        folder: Path,
        credentials: Credentials,
        pace: float,
        last: int | None = None,
    ) -> None:
        self._cluster = cluster
        self._folder = folder
        self._observer = Observer(cluster.manager, (), JOB, credentials, timeout=_ANSWER_SECONDS)
        self._done = 0
        self._moved_at = time.monotonic()
        self.failures: list[str] = []  # failures of its processes, in words
        if last is not None:
            self._stop_after(last)
        self._processes = []
        for name in (f"worker-{number}" for number in range(WORKERS)):
            journal, out = folder / f"{name}.jsonl", folder / f"{name}.npz"
            argument = as_argument(journal=journal, stop=folder / "stop", out=out, pause=pace)
            process = cluster.start_worker(name, honest_worker.__file__, [argument], {"--job": JOB})
            self._processes.append(process)

    def __enter__(self) -> "HonestJob":
        return self

    def __exit__(self, *error: object) -> None:
        self._observer.close()

    @property
    def iterations(self) -> int:
        """Return the number of its iterations so far."""
        return len(self._observer.iterations)

    @property
    def seconds(self) -> list[float]:
        """Return the durations of its iterations so far, in seconds."""
        return [record.duration for record in self._observer.iterations]

    @property
    def workers(self) -> list[tuple[str, str]]:
        """Return its workers' names and incarnations."""
        logs = {process.name: process.log.read_text().splitlines() for process in self._processes}
        return [
            (name, line.removeprefix(honest_worker.IDENTITY))
            for name, lines in logs.items()
            for line in lines
            if line.startswith(honest_worker.IDENTITY)
        ]

    @property
    def silent_for(self) -> float:
        """Return the seconds since the last new iteration was seen."""
        return time.monotonic() - self._moved_at

    def look(self) -> bool:
        """Ask the manager for new iterations; return whether workers are running."""
        with contextlib.suppress(EvenpaceError):  # `silent_for` shows a manager that does not answer
            self._observer.poll()
        if self.iterations > self._done:
            self._done, self._moved_at = self.iterations, time.monotonic()
        try:
            return self._cluster.check()
        except ProcessFailedError as error:
            self.failures = [str(error)]
            return False

    def begin(self) -> None:
        """Wait for its first iterations (UnavailableError: they do not come)."""
        while self._done < 3:
            if not self.look() or self.silent_for > _START_SECONDS:
                raise UnavailableError(f"the honest job did not start to train: {self.failures}")
            time.sleep(_POLL_SECONDS)

    def finish(self) -> None:
        """Have it end after some more iterations, and wait for that; errors are added to `failures`."""
        self._stop_after(self._done + _AHEAD)
        self.wait()

    def wait(self) -> None:
        """Wait until all workers have ended."""
        while self.look():
            if self.silent_for > _START_SECONDS:
                self.failures.append("the honest job hangs")
                return
            time.sleep(_POLL_SECONDS)

    def outcome(self) -> tuple[int, NDArray[np.float64]] | None:
        """Return its number of iterations and its parameters, (elements,); None if it failed."""
        path = self._folder / "worker-0.npz"
        if self.failures or not path.exists():
            return None
        with np.load(path) as ended:
            return int(ended["version"]), ended["parameters"]

    def _stop_after(self, iteration: int) -> None:
        files.replace(self._folder / "stop", str(iteration).encode())
