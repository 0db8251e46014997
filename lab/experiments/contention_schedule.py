"""Schedule of competing tasks, the same for every scheme that is compared.

A schedule is read from a file, made from a machine-usage trace, or drawn at random. This module knows
nothing of processes, and has no clock.
"""

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np

from idl.errors import InvalidRequestError
from idl.settings import Setting, check_settings
from lab.csv_rows import read_rows
from lab.traces import read_usage
from predictors import Array

Unit = Literal["iterations", "seconds"]

COLUMNS = ("worker", "start", "end", "cpu", "memory")
_STEP_SECONDS = 5.0  # seconds that a step of a trace lasts here
_LEVELS = 10  # levels to which a trace's CPU demand is rounded, so that tasks last longer than a step
_MOST_MEMORY = 0.5  # of a worker's memory that a trace's task holds at most: the worker needs some itself


@dataclass(frozen=True, order=True)
class Task:
    """A competing task beside one worker (ValueError: a value is out of its range; the message names it)."""

    worker: int  # the worker's rank, from 0
    start: float  # when it begins, in the schedule's unit
    end: float  # when it ends
    # Demand for CPU time, as a share of what the worker may use; 1 competes as an equal for all of it.
    cpu: float = 1.0
    memory: float = 0.0  # memory that it holds, as a share of what the worker may use

    def __post_init__(self) -> None:
        if self.worker < 0:
            raise ValueError(f"worker {self.worker}: must be at least 0")
        if not (0 <= self.start < self.end < math.inf):
            raise ValueError(
                f"start {self.start}, end {self.end}: must be at least 0, and end after it starts"
            )
        if not 0 <= self.cpu <= 1:
            raise ValueError(f"cpu {self.cpu}: must be from 0 to 1")
        if not 0 <= self.memory < 1:
            raise ValueError(f"memory {self.memory}: must be at least 0 and below 1")


@dataclass(frozen=True)
class Schedule:
    """Competing tasks, by their start."""

    tasks: tuple[Task, ...]  # in the order of their starts
    unit: Unit  # unit of their times
    source: str  # source of the schedule, for people

    def __post_init__(self) -> None:
        object.__setattr__(self, "tasks", tuple(sorted(self.tasks, key=lambda task: task.start)))

    def active(self, now: float) -> set[Task]:
        """Return the tasks that run at a time."""
        return {task for task in self.tasks if task.start <= now < task.end}

    def of_first(self, workers: int) -> "Schedule":
        """Return the schedule of the first `workers` workers alone."""
        return replace(self, tasks=tuple(task for task in self.tasks if task.worker < workers))

    def check_workers(self, workers: int) -> None:
        """Check that there are as many workers as the schedule names (ValueError: there are fewer)."""
        highest = max((task.worker for task in self.tasks), default=-1)
        if highest >= workers:
            raise ValueError(f"{self.source}: a task for worker {highest}, but there are {workers} workers")


@dataclass(frozen=True, kw_only=True)
class Disturbance:
    """The choice of a schedule of disturbances: from a file, from recorded usage, or at random."""

    file: Annotated[
        Path | None,
        Setting(
            "Who is disturbed when: worker,start,end,cpu,memory; in iterations.  [default: at random]",
            name="schedule",
            folder=False,
            exists=True,
        ),
    ] = None
    usage: Annotated[
        Path | None,
        Setting("Disturb as machines were used: vm,step,cpu_percent,mem_percent.", folder=False, exists=True),
    ] = None
    phases: Annotated[
        tuple[int, int],
        Setting("Iterations that random contention is on, or off.", metavar="SHORTEST LONGEST", least=1),
    ] = (20, 60)

    def __post_init__(self) -> None:
        check_settings(self)
        if self.file is not None and self.usage is not None:
            raise InvalidRequestError("--schedule and --usage: give one of them")

    def schedule(self, workers: int, iterations: int, seed: int) -> Schedule:
        """Return the tasks beside workers; the seed draws a random schedule, or a trace's machines."""
        if self.file is not None:
            schedule = read_schedule(self.file)
            schedule.check_workers(workers)
            return schedule
        if self.usage is not None:
            return trace_schedule(self.usage, workers, seed)
        return random_schedule(range(workers), iterations, seed, *self.phases)


def random_schedule(
    workers: Sequence[int], iterations: int, seed: int, shortest: int, longest: int
) -> Schedule:
    """Draw on/off contention by an equal competitor, which halves a worker's speed while it lasts.

    Each of the workers, named by rank, is disturbed independently of the others. Each phase, on or off, lasts
    from the shortest to the longest number of iterations.
    """
    if not 1 <= shortest <= longest:
        raise ValueError(f"phases of {shortest} to {longest} iterations: must be at least 1, in this order")
    tasks = []
    for worker in workers:
        random = np.random.default_rng([seed, worker])
        # Each worker begins somewhere in a phase, so that they do not change together; and at a fraction of
        # an iteration, for real tasks come and go in the middle of iterations, too.
        at, on = -float(shortest * random.random()), bool(random.integers(2))
        while at < iterations:
            length = float(random.integers(shortest, longest + 1))
            if on and at + length > 0:
                tasks.append(Task(worker, max(0.0, at), at + length))
            at, on = at + length, not on
    return Schedule(tuple(tasks), "iterations", f"random, seed {seed}")


def read_schedule(path: Path) -> Schedule:
    """Read a CSV file with the columns worker, start, end, cpu and memory, as `Task` has them.

    Its times are in iterations.
    """
    tasks = []
    for row in read_rows(path, COLUMNS):
        try:
            tasks.append(Task(int(row.values["worker"]), *(float(row.values[name]) for name in COLUMNS[1:])))
        except ValueError as error:
            raise ValueError(f"{path}, line {row.line}: {error}") from error
    return Schedule(tuple(tasks), "iterations", str(path))


def write_schedule(schedule: Schedule, path: Path) -> None:
    """Write a schedule in the format of `read_schedule` (OSError: the file cannot be written)."""
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(COLUMNS)
        writer.writerows([t.worker, t.start, t.end, t.cpu, t.memory] for t in schedule.tasks)


def trace_schedule(path: Path, workers: int, seed: int) -> Schedule:
    """Make tasks with the CPU and memory demand of a trace's machines, one machine for each worker.

    As in LB-BSP (section 5.3), the usage of a machine's tasks is the demand that competes with the worker.
    Usage that stays the same, to a tenth of the CPU, is one task. The file is one for
    `lab.traces.read_usage`, such as the Google cluster trace; the seed chooses the machines.
    """
    usage = read_usage(path)
    if len(usage) < workers:
        raise ValueError(f"{path}: {len(usage)} machines, but {workers} workers")
    machines = np.random.default_rng(seed).choice(sorted(usage), workers, replace=False).tolist()
    tasks = [task for worker, machine in enumerate(machines) for task in _tasks_of(worker, *usage[machine])]
    return Schedule(tuple(tasks), "seconds", f"{path}, machines {', '.join(machines)}")


def _tasks_of(worker: int, cpu: Array, memory: Array) -> list[Task]:
    tasks: list[Task] = []
    for step, (demand, held) in enumerate(zip(cpu, memory, strict=True)):
        level = round(float(demand) * _LEVELS) / _LEVELS
        start, end = step * _STEP_SECONDS, (step + 1) * _STEP_SECONDS
        if tasks and tasks[-1].cpu == level:
            tasks[-1] = Task(worker, tasks[-1].start, end, level, tasks[-1].memory)
        else:
            tasks.append(Task(worker, start, end, level, min(float(held), _MOST_MEMORY)))
    return [task for task in tasks if task.cpu or task.memory]
