"""Measure what deaths, freezes and broken connections cost a job.

For each, how long no step was taken, beyond what one takes, and how many were done again. A manager, shards
and workers are real processes with a proxy between them, as in `evenpace lab chaos`; the figures come from
the shards' ledgers.

Example:
  evenpace lab bench recovery --repeats 3 --json recovery.json
"""

import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console

from evenpace.local.terminal import make_table
from idl.errors import UnavailableError
from idl.settings import Checked, Setting
from lab.bench.costs import chosen, measured
from lab.chaos.chaos_cluster import ChaosCluster
from lab.chaos.config import ChaosConfig
from lab.chaos.job_progress import Progress
from lab.chaos.ledgers import ShardSteps, Step, read_ledger
from lab.fields import Repeats
from lab.waiting import wait_until


@dataclass(frozen=True)
class RecoveryConfig(Checked):
    """The job, and what happens to it (InvalidRequestError: a value is out of its range)."""

    workers: Annotated[int, Setting("Of the job.", least=2)] = 3
    away: Annotated[
        float,
        Setting(
            "Seconds after which a killed process is started again, or one that vanished is back.", least=0
        ),
    ] = 1.0
    checkpoint_every: Annotated[int, Setting("Versions, at a shard.", least=1)] = 20
    repeats: Repeats = 3
    # What happens, by their names in `lab.bench.recovery.EVENTS`, in this order; all if empty.
    events: tuple[str, ...] = ()


_SHARDS = 2  # of the parameter server
_CALM = 50  # steps between two faults


class _Job:
    """A job that trains, and its progress."""

    def __init__(self, cluster: ChaosCluster, away: float) -> None:
        self.cluster = cluster
        self.supervisor = cluster.supervisor
        self.away = away
        self.victim = cluster.workers[-1]
        (self._name,) = cluster.jobs
        self._progress = Progress(cluster, self._name)

    def until(self, what: str, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds (UnavailableError: a process ended that was not killed)."""
        wait_until(what, condition, self._look, tick=0.005)

    def _look(self) -> None:
        self.supervisor.poll()
        for end in self.supervisor.endings:
            raise UnavailableError(f"{end.name} ended with status {end.code}; its log:\n{end.log}")
        self._progress.look()

    def go_on(self, steps: int = _CALM) -> float:
        """Wait until the job has taken `steps` steps; return the seconds that one took."""
        began, first = time.monotonic(), self._progress.version
        self.until(
            f"the job to take {steps} steps beyond step {first}",
            lambda: self._progress.version >= first + steps,
        )
        return (time.monotonic() - began) / steps

    def all_train(self) -> None:
        """Wait until all workers take part, other than those that are to stay away."""
        away = {name for name, due in self.supervisor.due.items() if due == math.inf}
        there = set(self.cluster.workers) - away
        self.until(f"the workers {', '.join(sorted(there))} to take part", lambda: self._parties() == there)

    def measure(self, event: Callable[["_Job"], None]) -> dict[str, float]:
        """Cause a fault, wait until the job has recovered from it, and return its cost."""
        normal = self.go_on()
        before = self._shard_steps()
        self._progress.longest = 0.0
        event(self)
        self.all_train()
        self.go_on(10)
        after = self._shard_steps()
        return {
            "step_s": normal,
            "still_s": max(0.0, self._progress.longest - normal),
            "redone": max(b.redone - a.redone for a, b in zip(before, after, strict=True)),
            "attempts": after[0].attempt - before[0].attempt,
        }

    def kill(self, name: str, seconds: float) -> None:
        self.supervisor.kill(name, seconds).wait()

    def _shard_steps(self) -> list[ShardSteps]:
        every, ledgers = self.cluster.settings.checkpoint_every, self.cluster.ledgers
        shards = self.cluster.shards
        return [ShardSteps.of(one, every, read_ledger(ledgers(one, self._name))) for one in shards]

    def _parties(self) -> set[str]:
        """Return the workers that took part in the last step."""
        last: Step | None = None
        for line in read_ledger(self.cluster.ledgers(self.cluster.shards[0], self._name)):
            last = line if isinstance(line, Step) else None
        return {worker for _, _, worker in last.slices} if last is not None else set()


def _kill_worker(job: _Job) -> None:
    job.kill(job.victim, math.inf)
    job.go_on(10)


def _freeze(job: _Job) -> None:
    victim = job.supervisor.processes[job.victim]
    victim.pause()
    job.go_on(10)
    victim.resume()


def _kill_all_workers(job: _Job) -> None:
    for name in job.cluster.workers:
        job.kill(name, job.away)


def _cut(job: _Job) -> None:
    for link in job.cluster.proxy.links.values():
        if link.name.startswith(f"{job.victim}>"):
            job.cluster.proxy.do(link.cut)


def _vanish(service: str) -> Callable[[_Job], None]:
    def event(job: _Job) -> None:
        proxy = job.cluster.proxy
        links = [link for link in proxy.links.values() if link.name.endswith(f">{service}")]
        for link in links:
            proxy.do(link.swallow)
        back = time.monotonic() + job.away
        job.until(f"the outage of {service} to end", lambda: time.monotonic() >= back)
        for link in links:
            proxy.do(link.answer_again)
        job.go_on(10)

    return event


EVENTS: dict[str, Callable[[_Job], None]] = {
    "a worker is killed": _kill_worker,
    "a worker joins": lambda job: job.supervisor.due.update({job.victim: 0.0}),
    "a worker freezes, and comes back": _freeze,
    "all workers are killed": _kill_all_workers,
    "the manager is killed": lambda job: job.kill("manager", job.away),
    "a shard is killed": lambda job: job.kill(job.cluster.shards[-1], job.away),
    "a worker's connections break": _cut,
    "the manager vanishes, and closes no connection": _vanish("manager"),
    "a shard vanishes, and closes no connection": _vanish("ps-0"),
}
"""Faults by name; the worker that is killed in the first joins again in the second."""


def run(config: RecoveryConfig, console: Console) -> dict[str, Any]:
    """Cause all faults to a job, one after the other, and print and return their costs."""
    events = chosen("events", config.events, EVENTS)
    settings = ChaosConfig(
        1.0, 0, ("kill",), config.workers, _SHARDS, checkpoint_every=config.checkpoint_every
    )
    with (
        tempfile.TemporaryDirectory(prefix="evenpace-recovery-") as folder,
        ChaosCluster(settings, Path(folder)) as cluster,
    ):
        job = _Job(cluster, config.away)
        job.until("the manager and the shards to listen", cluster.listening)
        cluster.start_workers()
        job.all_train()
        figures = asdict(config) | measured(events, config.repeats, job.measure, console)
    _show(console, figures)
    return figures


def _show(console: Console, figures: dict[str, Any]) -> None:
    title = (
        f"{figures['workers']} workers, {_SHARDS} shards, {figures['step_s'] * 1e3:.0f} ms a step; "
        f"what is killed is started again after {figures['away']:g} s"
    )
    table = make_table(title, "", "stands still s", "at most s", "steps done again", "attempts")
    for name, cost in figures["costs"].items():
        times = (f"{cost[key]:.2f}" for key in ("still_s", "longest_s"))
        table.add_row(name, *times, *(f"{cost[key]:.0f}" for key in ("redone", "attempts")))
    console.print(table)
