"""A job on a Ray cluster of this machine that can lose its nodes, and what its workers write down."""

import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
import psutil

from idl.errors import UnavailableError
from idl.settings import Setting
from lab.chaos import journalling_worker
from lab.chaos.checks import relative_error
from lab.chaos.ledgers import parse, read_finals
from lab.chaos.reference_training import train_alone
from lab.new_lines import NewLines
from lab.ray_nodes import RayNode, job_processes
from lab.script_options import as_argument
from lab.waiting import wait_until

Silence = Annotated[
    float | None,
    Setting(
        "Seconds of silence after which Ray gives up a node.  [default: Ray's own setting]",
        least=0.1,
        below=inf,
    ),
]
"""When Ray takes a node for dead."""

JOB = "nodes"
PLACE, STEADY = "place", "steady"
"""Resources of Ray's: of nodes on which one worker runs, and of nodes on which services do."""

_TOLERANCE = 1e-12  # relative error of the final parameters
_TICK_SECONDS = 0.01  # between two looks at the job
_PATIENCE_SECONDS = 300.0  # in which the job must start, go on after a loss, and end
_LAST_LINES = 30  # of the job's log, in messages


def difference(error: float) -> dict[str, Any]:
    """Return figures of the parameters at a job's end, whose relative error to one process's is given."""
    equal = error <= _TOLERANCE
    failure = None if equal else "the parameters are not those of one process"
    return {"error": error, "equal": equal, "failure": failure}


class RayCluster:
    """Context manager that has a Ray cluster on this machine, whose nodes come and go."""

    def __init__(self, silence: float | None) -> None:
        self._silence = silence
        self._stack = contextlib.ExitStack()
        self._numbers = itertools.count(1)
        self._starting = threading.Lock()  # Ray cannot tell nodes of one address that start at the same time
        self.nodes: list[RayNode] = []

    def __enter__(self) -> Self:
        # Ray's sockets are in it, and need a short path.
        temporary = tempfile.TemporaryDirectory(prefix="evenpace-", ignore_cleanup_errors=True)
        with self._stack:
            self.folder = Path(self._stack.enter_context(temporary))
            self._stack.callback(self.end)
            self.begin()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def begin(self) -> None:
        """Start a head."""
        self.head = RayNode(
            f"head-{next(self._numbers)}",
            self.folder,
            cpus=0,
            environment={"TMPDIR": str(self.folder), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            silence=self._silence,
        )
        self.head.start()

    def end(self) -> None:
        """Kill all nodes, the head first."""
        for node in (self.head, *self.nodes):
            node.kill()
        self.nodes = []

    def add(self, kind: str, count: int = 1, cores: float | None = None) -> RayNode:
        """Add a node with `count` of a resource, `PLACE` or `STEADY`, and with so many cores at most."""
        name = f"{kind}-{next(self._numbers)}"
        node = RayNode(name, self.folder, self.head, cpus=0, resources={kind: count}, cores=cores)
        with self._starting:
            self.nodes.append(node)  # so that it is killed, however its start ends
            node.start()
        return node

    def kill(self, node: RayNode) -> None:
        """Kill a node."""
        node.kill()
        self.nodes.remove(node)

    def node_of(self, process: psutil.Process) -> RayNode:
        """Return the node that a process of a job runs on."""
        return next(node for node in self.nodes if process in node.processes)


@dataclass
class Progress:
    """How far a job has come, from the journals that its workers write."""

    journals: Path  # folder of the journals
    attempt: int = 0  # the attempt that the job is in
    version: int = 0  # version of the parameters that a worker has reached in it
    redone: int = 0  # iterations whose steps were taken back
    longest: float = 0.0  # longest time between two steps since it was set to 0, in seconds
    # When the last step was seen, by the monotonic clock.
    moved: float = field(default_factory=time.monotonic)
    # The last iteration that each worker has computed, by its name.
    computed: dict[str, int] = field(default_factory=dict)
    computed_samples: int = 0  # samples that all have computed, those that were computed again included
    _lines: NewLines = field(default_factory=NewLines)

    def look(self) -> None:
        """Read the journals' new lines."""
        before, now = (self.attempt, self.version), time.monotonic()
        for path in self.journals.glob("*.jsonl"):
            for what, attempt, iteration, *rest in parse(self._lines.of(path)):
                if what == "computed":
                    self.computed[path.stem.rpartition("-")[0]] = iteration
                    self.computed_samples += rest[1]
                elif attempt > self.attempt:
                    self.redone += max(0, self.version - iteration)
                    self.attempt, self.version = attempt, iteration
                elif attempt == self.attempt:
                    self.version = max(self.version, iteration)
        if self.attempt == before[0] and self.version > before[1]:
            self.longest = max(self.longest, now - self.moved)
            self.moved = now


class RayJob:
    """A job on a cluster, submitted by `evenpace submit`, whose workers train until they are told to stop.

    Services need nodes that are `STEADY`, workers those that have a `PLACE`.
    """

    def __init__(
        self,
        cluster: RayCluster,
        workers: str,
        shards: int,
        checkpoint_every: int,
        *,
        pause: float = 0.0,
        per_sample: float = 0.0,
    ) -> None:
        self._cluster = cluster
        self.storage = cluster.folder / "results"
        own = cluster.folder / "job"
        self._stop, self._journals, self._finals = own / "stop", own / "journals", own / "parameters"
        for folder in (self._journals, self._finals):
            folder.mkdir(parents=True)
        self._options = (
            *("--workers", workers, "--cpus-per-worker", "0", "--resource", f"{PLACE}=1"),
            *("--shards", str(shards), "--service-resource", f"{STEADY}=1", "--name", JOB),
            *("--storage", str(self.storage), "--ps-options", f"--checkpoint-every {checkpoint_every}"),
        )
        files = {"journal": self._journals, "stop": self._stop, "out": self._finals}
        self._argument = as_argument(**files, pause=pause, per_sample=per_sample)
        self.progress = Progress(self._journals)  # how far it has come

    @property
    def log(self) -> str:
        """Return the job's own log."""
        return _text(self.storage / JOB / "logs" / "job.log")

    @property
    def result(self) -> Mapping[str, Any] | None:
        """Return the job's end; None while it goes on."""
        text = _text(self.storage / JOB / "result.json")
        return json.loads(text) if text else None

    def submit(self, *, resume: bool = False) -> None:
        """Submit it, or go on with it on another cluster (UnavailableError: the command failed)."""
        line = [sys.executable, "-m", "evenpace", "submit", "--detach"]
        line += ["--address", self._cluster.head.address, *self._options, *["--resume"] * resume]
        line += [journalling_worker.__file__, self._argument]
        environment = {**os.environ, **self._cluster.head.environment}
        done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise UnavailableError(f"the job could not be submitted: {done.stderr or done.stdout}")

    def until(
        self,
        what: str,
        condition: Callable[[], bool],
        seconds: float = _PATIENCE_SECONDS,
    ) -> None:
        """Wait until a condition holds, and follow the job meanwhile; `what` describes it in the error."""
        deadline = time.monotonic() + seconds
        while not condition():
            result = self.result
            if result is not None or time.monotonic() > deadline:
                why = (
                    f"within {seconds:g} s" if result is None else f"before the job ended, {result['state']}"
                )
                lines = "\n".join(self.log.splitlines()[-_LAST_LINES:])
                raise UnavailableError(f"{what}: this was not so {why}; the job's log:\n{lines}")
            self.progress.look()
            time.sleep(_TICK_SECONDS)

    def go_on(self, steps: int) -> float:
        """Wait until the job has taken `steps` steps; return the seconds that one took."""
        began, first, attempt = time.monotonic(), self.progress.version, self.progress.attempt
        progress = self.progress

        def has() -> bool:
            nonlocal first, attempt
            if progress.attempt != attempt:
                first, attempt = progress.version, progress.attempt
            return progress.version >= first + steps

        self.until(f"{steps} more steps", has)
        return (time.monotonic() - began) / steps

    def all_train(self, workers: Sequence[str]) -> None:
        """Wait until all these workers take part."""

        def all_do() -> bool:
            computed, recent = self.progress.computed, self.progress.version - 2
            return all(name in computed and computed[name] >= recent for name in workers)

        self.until(f"{', '.join(workers)} take part", all_do)

    def process(self, name: str) -> psutil.Process:
        """Return one process of the job, by its name; waits until there is one."""
        found: list[psutil.Process] = []

        def is_there() -> bool:
            found[:] = job_processes(self._cluster.head.environment, JOB, name)
            return len(found) == 1

        self.until(f"{name} runs", is_there)
        return found[0]

    def finish(self, steps: int = 20) -> tuple[int, float]:
        """Have the workers stop after some more steps, and wait for the job's end.

        Returned are the last version, and the relative error of its parameters: their largest difference from
        those of one process that takes the whole batches in order.
        """
        last = self.progress.version + steps
        new = self._stop.with_suffix(".new")
        new.write_text(str(last))
        new.rename(self._stop)
        wait_until("the job's end", lambda: self.result is not None, lambda: None, tick=_TICK_SECONDS)
        if self.result is None or self.result["state"] != "done":
            raise UnavailableError(f"the job did not end well: {self.result}; its log:\n{self.log}")
        finals = read_finals(self._finals.glob("*.npz"))
        versions = {name: version for name, (version, _) in finals.items()}
        if len({*versions.values()}) != 1:
            raise UnavailableError(f"the workers' last versions differ: {versions}")
        last = next(iter(versions.values()))
        _, alone = train_alone(last)
        scale = float(np.abs(alone).max())
        return last, max(relative_error(final, alone, scale) for _, final in finals.values())


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""
