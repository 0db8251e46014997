"""One run: a cluster trains under faults until the time is up, ends cleanly, and is judged."""

import contextlib
import json
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from evenpace.chaos.cluster import Cluster
from evenpace.chaos.errors import ChaosError, NotPossibleHereError
from evenpace.chaos.processes import left_behind
from evenpace.chaos.progress import Progress
from evenpace.chaos.report import Screen, print_outcome
from evenpace.chaos.schedule import schedule
from evenpace.chaos.settings import Settings
from evenpace.chaos.storm import Storm
from evenpace.chaos.verdict import Outcome, judge
from evenpace.observer import Observer, plain_record
from rpc.errors import EvenpaceError

_TICK_SECONDS = 0.05
_START_SECONDS = 180.0  # for all workers to train, where the machine is busy
_HELD_SECONDS = 20.0  # without a step, after which no more faults come until there is one
_HUNG_SECONDS = 120.0  # without a step, a fault and a start of a process: it hangs
_END_SECONDS = 120.0  # for the workers to end
_MOST_ENDINGS = 20  # of processes that nobody killed
_AHEAD = 40  # iterations from the order to stop to the last


def run(settings: Settings, json_path: Path | None) -> bool:
    """Let a cluster train under faults, print what came of it, and write it to a file.

    Args:
        settings: Of the run.
        json_path: Where all that is known of the run goes, as JSON.

    Returns:
        Whether nothing was violated. If something was, the run's folder is kept.

    Raises:
        NotPossibleHereError: The settings name a kind of fault that cannot be brought about here.
    """
    folder = Path(tempfile.mkdtemp(prefix="evenpace-chaos-"))
    began = time.monotonic()
    try:
        outcome = _run(settings, folder)
    except (KeyboardInterrupt, NotPossibleHereError):
        shutil.rmtree(folder, ignore_errors=True)
        raise
    outcome.seconds = time.monotonic() - began
    if not outcome.violations:
        shutil.rmtree(folder)
    print_outcome(outcome, folder)
    if json_path is not None:
        json_path.write_text(json.dumps(outcome.as_json(), indent=1) + "\n")
    return not outcome.violations


def _run(settings: Settings, folder: Path) -> Outcome:
    with _noted_signals() as noted, Cluster(settings, folder) as cluster:
        course = _Run(cluster, noted)
        try:
            course.go()
        except ChaosError as error:
            course.problems.append(str(error))
        finally:
            course.stop()
    course.problems += [f"left behind: {line}" for line in left_behind(folder)]
    return judge(cluster, course.storm, course.progress, course.history, course.problems)


class _Run:
    """A run from the start of the processes to their end."""

    def __init__(self, cluster: Cluster, noted: list[int]) -> None:
        self.cluster = cluster
        self._noted = noted
        self.progress = Progress(cluster)
        settings = cluster.settings
        seconds = settings.minutes * 60
        self.faults = schedule(settings.seed, cluster.kinds, cluster.sites, settings.gap, seconds)
        self.storm = Storm(cluster, iter(()), cluster.folder / "faults.jsonl")
        self.history: list[dict[str, Any]] = []
        self.problems: list[str] = []
        self._screen = Screen()

    def go(self) -> None:
        """Train under faults, to the end.

        Raises:
            ChaosError: It did not come to a clean end.
        """
        cluster, progress = self.cluster, self.progress
        self._until("the services listen", _START_SECONDS, cluster.listening)
        cluster.start_workers()
        self._until("all workers train", _START_SECONDS, lambda: self._all_train(0))
        self.storm = Storm(cluster, self.faults, cluster.folder / "faults.jsonl")
        until = time.monotonic() + cluster.settings.minutes * 60
        progress.moved, progress.longest = time.monotonic(), 0.0
        while time.monotonic() < until:
            self._tick()
            self._check_hung()
        self.storm.end()
        self._until("all faults are over", _START_SECONDS, lambda: self.storm.done)
        calm = time.monotonic()
        self._until("all workers train again", _START_SECONDS, lambda: self._all_train(calm))
        _write(cluster.stop_file, str(progress.version + _AHEAD))
        for process in cluster.supervisor.running("worker"):
            process.wanted = False
        self._until("the workers end", _END_SECONDS, lambda: not cluster.supervisor.running("worker"))
        self._read_history()

    def stop(self) -> None:
        """End the services, and see that they end well."""
        self._screen.close()
        self.storm.lift()
        for role in ("worker", "shard", "manager"):
            running = self.cluster.supervisor.running(role)
            self.cluster.supervisor.stop(role)
            for process in running:
                assert process.popen is not None
                if process.popen.returncode not in (0, -signal.SIGTERM if role == "worker" else 0):
                    self.problems.append(
                        f"{process.name} was told to end, and did so with status {process.popen.returncode}"
                    )
        self.progress.look()

    def _tick(self) -> None:
        if self._noted:
            raise KeyboardInterrupt
        self.cluster.supervisor.poll()
        if len(self.cluster.supervisor.endings) > _MOST_ENDINGS:
            raise ChaosError(f"more than {_MOST_ENDINGS} processes have ended by themselves")
        self.progress.look()
        self.storm.tick(hold=time.monotonic() - self.progress.moved > _HELD_SECONDS)
        self._screen.show(self.storm, self.progress, self.cluster.supervisor)
        time.sleep(_TICK_SECONDS)

    def _until(self, what: str, seconds: float, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                raise ChaosError(f"within {seconds:g} s it did not come about that {what}")
            self._tick()

    def _all_train(self, since: float) -> bool:
        """Whether all workers have come as far as the others, and a step was taken."""
        running = self.cluster.supervisor.running("worker")
        return (
            len(running) == self.cluster.settings.workers
            and all(self._has_parameters(process.name) for process in running)
            and self.progress.moved > since
            and self.progress.version > 0
        )

    def _has_parameters(self, worker: str) -> bool:
        """Whether its present start has come to train."""
        start = self.cluster.supervisor.processes[worker].starts - 1
        journal = self.cluster.folder / "journals" / f"{worker}-{start}.jsonl"
        return journal.exists() and journal.stat().st_size > 0

    def _check_hung(self) -> None:
        quiet = max(
            self.progress.moved,
            *(one.ended or 0.0 for one in self.storm.over),
            *(process.since for process in self.cluster.supervisor.processes.values()),
        )
        if not self.storm.active and time.monotonic() - quiet > _HUNG_SECONDS:
            raise ChaosError(
                f"hung: no step for {time.monotonic() - self.progress.moved:.0f} s, without a fault"
            )

    def _read_history(self) -> None:
        observer = Observer(self.cluster.manager, ())
        try:
            observer.poll()
            self.history = [plain_record(record) for record in observer.iterations]
        except EvenpaceError as error:
            self.problems.append(f"the manager does not tell its history: {error}")
        finally:
            observer.close()


@contextlib.contextmanager
def _noted_signals() -> Iterator[list[int]]:
    """Signals to end are only noted here, lest one comes between a process's start and our knowing of it."""
    noted: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda number, frame: noted.append(number)) for number in numbers]
    try:
        yield noted
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _write(path: Path, text: str) -> None:
    """Write a file that others may read at any moment."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)
