"""One chaos run: a cluster trains under faults until the time is up, ends cleanly, and is judged.

With `deterministic` or `exact`, another cluster then trains as long, without a fault.
"""

import contextlib
import math
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from evenpace.reports import files
from idl.errors import EvenpaceError
from lab.chaos.chaos_cluster import ChaosCluster
from lab.chaos.chaos_report import Screen, print_outcome
from lab.chaos.config import ChaosConfig
from lab.chaos.errors import ChaosError, NotPossibleHereError
from lab.chaos.fault_schedule import schedule
from lab.chaos.job_progress import Progress
from lab.chaos.storm import Storm
from lab.chaos.supervisor import left_behind
from lab.chaos.verdict import CALM, Verdict, judge
from lab.observer import Observer
from lab.waiting import wait_until

_TICK_SECONDS = 0.05  # seconds between two looks at the cluster
_START_SECONDS = 180.0  # seconds until all workers train, at most, on a busy machine
_HELD_SECONDS = 20.0  # seconds without a step, after which no fault comes until there is one
_HUNG_SECONDS = 120.0  # seconds without a step, a fault and a start of a process that count as a hang
_OVER_SECONDS = 600.0  # seconds for faults to be over that are under way at the end
_END_SECONDS = 120.0  # seconds for the workers to end
_MOST_ENDINGS = 20  # ends of processes that were not killed, after which the run is given up
_AHEAD = 40  # iterations from the order to stop to the last one


def run(settings: ChaosConfig, json_path: Path | None) -> bool:
    """Let a cluster train under faults, print the outcome, and write it to a file.

    Returned is whether there was no violation. If there was one, the run's folder is kept.
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
        files.write_json(outcome.as_json(), json_path)
    return not outcome.violations


def _run(settings: ChaosConfig, folder: Path) -> Verdict:
    with _noted_signals() as noted:
        finished = _finished_run(settings, folder, noted)
        if settings.same_bits and not finished.problems:
            versions = {job: progress.version for job, progress in finished.progress.items()}
            calm = replace(settings, kinds=("kill",), pause=0.0, link_mib=math.inf)  # of which none comes
            (folder / CALM).mkdir()
            problems = _finished_run(calm, folder / CALM, noted, versions).problems
            finished.problems += [f"without faults: {problem}" for problem in problems]
    return judge(finished.cluster, finished.storm, finished.progress, finished.history, finished.problems)


def _finished_run(
    settings: ChaosConfig, folder: Path, noted: list[int], versions: Mapping[str, int] | None = None
) -> "_Run":
    """Make a run and return it, finished; without faults if `versions`, the jobs' last ones, are given."""
    with ChaosCluster(settings, folder) as cluster:
        finished = _Run(cluster, noted)
        try:
            finished.go(versions)
        except ChaosError as error:
            finished.problems.append(str(error))
        finally:
            finished.stop()
    finished.problems += [f"left behind: {line}" for line in left_behind(folder)]
    return finished


class _Run:
    """A run from the start of the processes to their end."""

    def __init__(self, cluster: ChaosCluster, noted: list[int]) -> None:
        self.cluster = cluster
        self._noted = noted
        self.progress = {job: Progress(cluster, job) for job in cluster.jobs}
        settings = cluster.settings
        seconds = settings.minutes * 60
        self.faults = schedule(settings.seed, cluster.kinds, cluster.sites, settings.gap, seconds)
        self.storm = Storm(cluster, iter(()), cluster.folder / "faults.jsonl")
        self.history: dict[str, list[dict[str, Any]]] = {job: [] for job in cluster.jobs}
        self.problems: list[str] = []
        self._screen = Screen()

    def go(self, versions: Mapping[str, int] | None = None) -> None:
        """Train to the end: under faults, unless `versions`, the jobs' last ones, are given."""
        cluster, seconds = self.cluster, _END_SECONDS
        self._until("the manager and the shards to listen", _START_SECONDS, cluster.listening)
        cluster.start_workers()
        if versions is None:
            self._under_faults()
            versions = {job: progress.version + _AHEAD for job, progress in self.progress.items()}
        else:
            cluster.supervisor.poll()
            seconds += cluster.settings.minutes * 60  # for as many iterations as there were under faults
        for job, version in versions.items():
            files.replace(cluster.stop_file(job), str(version).encode())
        cluster.supervisor.wanted -= set(cluster.workers)
        self._until("the workers to end", seconds, lambda: not cluster.supervisor.running("worker"))
        self._read_history()

    def _under_faults(self) -> None:
        self._until("all workers to train", _START_SECONDS, lambda: self._all_train(0))
        self.storm = Storm(self.cluster, self.faults, self.cluster.folder / "faults.jsonl")
        until = time.monotonic() + self.cluster.settings.minutes * 60
        for progress in self.progress.values():
            progress.moved, progress.longest = time.monotonic(), 0.0
        while time.monotonic() < until:
            self._tick()
            self._check_hung()
            time.sleep(_TICK_SECONDS)
        self.storm.end()
        self._until("all faults to be over", _OVER_SECONDS, lambda: self.storm.done)
        calm = time.monotonic()
        self._until("all workers to train again", _START_SECONDS, lambda: self._all_train(calm))

    def stop(self) -> None:
        """End the services; an end that is not clean is a problem of the run."""
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
        self._look()

    def _look(self) -> None:
        for progress in self.progress.values():
            progress.look()

    @property
    def _moved(self) -> float:
        """Return when the job that has stood still for longest took its last step."""
        return min(progress.moved for progress in self.progress.values())

    def _tick(self) -> None:
        if self._noted:
            raise KeyboardInterrupt
        self.cluster.supervisor.poll()
        if len(self.cluster.supervisor.endings) > _MOST_ENDINGS:
            raise ChaosError(f"more than {_MOST_ENDINGS} processes have ended by themselves")
        self._look()
        held = time.monotonic() - self._moved > _HELD_SECONDS and not self.storm.long
        self.storm.tick(hold=held)
        self._screen.show(self.storm, self.progress, self.cluster.supervisor)

    def _until(self, what: str, seconds: float, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds; `what` names it in the error's message, as "all workers to train"."""
        wait_until(what, condition, self._tick, tick=_TICK_SECONDS, seconds=seconds, error=ChaosError)

    def _all_train(self, since: float) -> bool:
        """Return whether all workers train as far as the others, and a step was taken since a time."""
        running = {process.name: process for process in self.cluster.supervisor.running("worker")}
        return (
            all(name in running and self.cluster.trains(running[name]) for name in self.cluster.workers)
            and self._moved > since
            and all(progress.version > 0 for progress in self.progress.values())
        )

    def _check_hung(self) -> None:
        quiet = max(
            self._moved,
            *(one.ended or 0.0 for one in self.storm.over),
            *(process.since for process in self.cluster.supervisor.processes.values()),
        )
        if not self.storm.active and time.monotonic() - quiet > _HUNG_SECONDS:
            raise ChaosError(f"hung: no step for {time.monotonic() - self._moved:.0f} s, without a fault")

    def _read_history(self) -> None:
        for job in self.history:
            observer = Observer(self.cluster.manager, (), job)
            try:
                observer.poll()
                self.history[job] = [record.plain() for record in observer.iterations]
            except EvenpaceError as error:
                self.problems.append(f"{job}: the manager does not tell its history: {error}")
            finally:
                observer.close()


@contextlib.contextmanager
def _noted_signals() -> Iterator[list[int]]:
    """Note signals to end, instead of ending between a process's start and its entry in our list."""
    noted: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda number, frame: noted.append(number)) for number in numbers]
    try:
        yield noted
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
