"""Competing tasks of a schedule, run by stress-ng beside the workers that they disturb.

A task runs in its worker's control groups, so that it competes within the worker's own quota, and on the
worker's CPU; where there are no control groups, on its CPU alone. Processes are started and stopped here,
and nothing else: who works on what is not this module's business.
"""

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from idl.errors import EvenpaceError
from lab.experiments.contention_schedule import Schedule, Task
from worker.resources import cgroups

_LONGEST = 86_400  # seconds; bounds the time of a stressor that is not stopped

# Joins the control groups that come before "--", then becomes the command after it.
_JOIN = 'while [ "$1" != -- ]; do echo $$ > "$1/cgroup.procs" || exit 1; shift; done; shift; exec "$@"'


class ContentionError(EvenpaceError):
    """A competing task could not be run."""


@dataclass(frozen=True)
class ProcessPlace:
    """Place beside a worker that is a process of this machine."""

    pid: int  # id of the worker's process
    cores: float  # cores that the worker may use
    memory_bytes: int  # bytes to which the schedule's shares of memory refer
    cpu: int | None = None  # CPU to which the worker is bound; None for any

    def start(self, command: Sequence[str]) -> "subprocess.Popen[bytes]":
        """Run a command beside the worker, in its control groups and on its CPU."""
        pin = ["--taskset", str(self.cpu)] if self.cpu is not None else []
        line = ["sh", "-c", _JOIN, "join", *map(str, self._groups()), "--", *command, *pin]
        return _in_a_session(line, stdout=subprocess.DEVNULL)

    def stop(self, popen: "subprocess.Popen[bytes]") -> None:
        """End what `start` began by SIGKILL, since SIGTERM takes long within a small CPU quota."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(popen.pid, signal.SIGKILL)

    def _groups(self) -> list[Path]:
        """Return the worker's control groups that limit or count CPU time; none if it has ours."""
        membership, own = cgroups.membership(self.pid), cgroups.membership()
        if membership == own:
            return []
        found = [cgroups.find_group(controller, membership) for controller in ("cpu", "cpuacct")]
        return list(dict.fromkeys(group.path for group in found if group is not None))


@dataclass(frozen=True)
class ContainerPlace:
    """Place in a worker's container, whose image must have stress-ng."""

    container: str  # name of the container
    cores: float  # cores that it may use
    memory_bytes: int  # bytes of memory that it may use

    def start(self, command: Sequence[str]) -> "subprocess.Popen[bytes]":
        """Run a command in the worker's container."""
        # The engine's client does not pass signals on: the command itself says what to stop.
        line = ["docker", "exec", self.container, "sh", "-c", 'echo "$$"; exec "$@"', "join", *command]
        return _in_a_session(line, stdout=subprocess.PIPE)

    def stop(self, popen: "subprocess.Popen[bytes]") -> None:
        """End what `start` began, by its process group in the container."""
        assert popen.stdout is not None
        pid = popen.stdout.readline().decode().strip()
        if pid:
            # stress-ng makes its stressors a process group of its own number.
            line = ["docker", "exec", self.container, "sh", "-c", f"kill -9 -{pid} {pid}"]
            subprocess.run(line, check=False, capture_output=True)
        popen.kill()


Place = ProcessPlace | ContainerPlace
"""The place in which a worker and its competing tasks run."""


def _in_a_session(line: Sequence[str], stdout: int) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        line, stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.PIPE, start_new_session=True
    )


def stress_command(task: Task, cores: float, memory_bytes: int) -> list[str]:
    """Return the command that runs one task beside a worker with these cores and bytes of memory."""
    command = ["stress-ng", "--quiet", "--timeout", f"{_LONGEST}s"]
    if task.cpu:
        stressors = max(1, round(cores))
        # A full demand is always ready to run; a smaller one leaves the CPU by itself.
        load = 100 if task.cpu == 1 else max(1, round(100 * task.cpu * cores / stressors))
        command += ["--cpu", str(stressors), "--cpu-load", str(load), "--cpu-method", "int64"]
    if task.memory:
        # Held, and not worked on: its CPU demand is given apart.
        size = max(2**20, round(task.memory * memory_bytes))
        command += ["--vm", "1", "--vm-bytes", str(size), "--vm-populate", "--vm-hang", "0"]
    return command


class Contention:
    """Runner of the tasks that the schedule has at the present time, at the places of the workers by rank."""

    def __init__(self, schedule: Schedule, places: Sequence[Place]) -> None:
        schedule.check_workers(len(places))
        if any(isinstance(place, ProcessPlace) for place in places) and shutil.which("stress-ng") is None:
            raise ContentionError("stress-ng is not installed; on Debian: apt-get install stress-ng")
        self._schedule = schedule
        self._places = places
        self._running: dict[Task, subprocess.Popen[bytes]] = {}
        self.started = 0  # number of tasks started so far

    def update(self, now: float) -> None:
        """Start and stop tasks for a time in the schedule's unit (ContentionError: one ended by itself)."""
        active = self._schedule.active(now)
        for task in self._running.keys() - active:
            self._stop(task)
        for task, popen in self._running.items():
            if popen.poll() is not None:
                assert popen.stderr is not None
                reason = popen.stderr.read().decode(errors="replace").strip()
                raise ContentionError(f"{task} ended with status {popen.returncode}: {reason}")
        for task in active - self._running.keys():
            place = self._places[task.worker]
            self._running[task] = place.start(stress_command(task, place.cores, place.memory_bytes))
            self.started += 1

    def close(self) -> None:
        """Stop all tasks."""
        for task in list(self._running):
            self._stop(task)

    def _stop(self, task: Task) -> None:
        popen = self._running.pop(task)
        self._places[task.worker].stop(popen)
        popen.wait()
        for stream in (popen.stdout, popen.stderr):
            if stream is not None:
                stream.close()
