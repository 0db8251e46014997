"""The honest job that trains while others attack: a small model whose samples are their numbers.

With even splits and deterministic sums, two runs of as many iterations end with the same parameters to the
last bit. Prints a JSON line for each iteration of its first worker, for `honest_process`.
"""

import json
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenpace.lab.speaker import say
from idl.errors import EvenpaceError
from idl.layout import Group, Layout
from idl.plan import Assignment, JobSpec
from rpc.address import Address
from rpc.credentials import Credentials
from worker.session import Session, SessionConfig

ELEMENTS = 1000
JOB = "honest"
WORKERS = 4
_BATCH = 64  # samples


@dataclass(frozen=True)
class HonestConfig:
    """One run of the job.

    Attributes:
        manager: HOST:PORT.
        shards: HOST:PORT of each.
        iterations: After which it ends; None: it goes on until standard input ends.
        pace: Seconds that a worker computes for.
        token: File with the job's token; None where none is asked for.
    """

    manager: str
    shards: tuple[str, ...]
    iterations: int | None
    pace: float
    token: str | None = None

    def to_json(self) -> str:
        """For the command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "HonestConfig":
        """As `to_json` wrote it."""
        values = json.loads(text)
        return cls(**values | {"shards": tuple(values["shards"])})

    def session(self, number: int) -> Session:
        """A worker's session."""
        return Session(
            SessionConfig(
                Address.parse(self.manager),
                tuple(Address.parse(shard) for shard in self.shards),
                job=JOB,
                worker=f"worker-{number}",
                barrier_timeout=120.0,
                credentials=Credentials(token=Path(self.token)) if self.token else None,
            )
        )


class HonestJob:
    """All its workers, a thread each."""

    def __init__(self, config: HonestConfig) -> None:
        self._config = config
        self._last: int | None = config.iterations
        self._failures: list[str] = []
        self._sessions = [config.session(number) for number in range(WORKERS)]
        self._parameters = b""
        self._done = 0

    def run(self) -> None:
        """Train, and say how it ended."""
        if self._config.iterations is None:
            threading.Thread(target=self._stop_with_input, daemon=True).start()
        threads = [threading.Thread(target=self._guarded, args=(number,)) for number in range(WORKERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        say(failures=self._failures, parameters=self._parameters.hex(), iterations=self._done)

    def _stop_with_input(self) -> None:
        sys.stdin.read()
        self._last = self._done + 3  # nobody is that far yet

    def _guarded(self, number: int) -> None:
        try:
            self._train(self._sessions[number], number)
        except EvenpaceError as error:
            self._failures.append(f"worker-{number}: {type(error).__name__}: {error}")

    def _train(self, session: Session, number: int) -> None:
        session.declare(JobSpec(_BATCH * 1000, _BATCH, seed=0, shuffle=False, drop_last=True))
        session.processing_time = lambda: lambda: 0.05  # an even split does not depend on it
        session.join()
        group = Group(ELEMENTS, {"lr": 0.1, "momentum": 0.9})
        initial = np.linspace(-1, 1, ELEMENTS, dtype=np.float32)
        session.open_parameters(Layout("float32", "sgd", (group,)), initial)
        if not number:
            say(workers=[(s.config.worker, s.incarnation) for s in self._sessions])
        while (assignment := session.assignment) is not None:
            if self._last is not None and assignment.iteration >= self._last:
                break
            began = time.monotonic()
            session.gradient[:] = gradient(session.parameters, assignment)
            if self._config.pace:
                time.sleep(self._config.pace)
            session.finish_iteration()
            if not number:
                self._done = assignment.iteration + 1
                self._parameters = session.parameters.tobytes()
                say(iteration=self._done, seconds=time.monotonic() - began)
        session.close()


def gradient(parameters: NDArray[Any], assignment: Assignment) -> NDArray[Any]:
    """The mean over the slice's samples, (elements,): sample i pulls each parameter to a value of its own."""
    samples = np.arange(assignment.start, assignment.start + assignment.count, dtype=np.float32)
    targets = np.sin(samples[:, None] * 0.1 + np.arange(len(parameters), dtype=np.float32))
    mean: NDArray[Any] = (parameters - targets).mean(axis=0, dtype=np.float32)
    return mean


if __name__ == "__main__":
    HonestJob(HonestConfig.from_json(sys.argv[1])).run()
