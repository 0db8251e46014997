"""Contention: stress-ng beside a worker, where and when the schedule says."""

import contextlib
import os
import shutil
import subprocess
import sys
import time

import psutil
import pytest

from lab.experiments.contention import Contention, ProcessPlace
from lab.experiments.contention_schedule import Schedule, Task
from tests.services import cpu_seconds
from worker.resources.cpu_limits import limit_cpu

needs_stress_ng = pytest.mark.skipif(shutil.which("stress-ng") is None, reason="stress-ng is not installed")

SPIN = "print(flush=True)\nwhile True: pass"


@pytest.fixture
def worker():
    """A process that spins on one CPU, in the place of a worker."""
    popen = subprocess.Popen([sys.executable, "-c", SPIN], stdout=subprocess.PIPE)
    popen.stdout.readline()
    os.sched_setaffinity(popen.pid, {min(os.sched_getaffinity(0))})
    yield popen
    popen.kill()
    popen.wait()
    popen.stdout.close()


def schedule(*tasks):
    """A schedule in iterations."""
    return Schedule(tasks, "iterations", "made up")


def stressors(name="stress-ng"):
    """The processes of stress-ng that this one has started."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.name().startswith(name) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


@pytest.mark.ci
@needs_stress_ng
def test_a_full_task_halves_a_limited_worker_and_its_end_restores_it(worker, wait_until):
    """Within the worker's own quota an equal competitor gets one half, and nothing once it has ended.

    Over all the time that both are there, the kernel counts the same CPU time for both. Where one
    was held up, what it lacks tells less and less.
    """
    place = ProcessPlace(worker.pid, 0.4, 2**20, min(os.sched_getaffinity(worker.pid)))
    try:
        limit = limit_cpu(worker.pid, 0.4, "contended", "cgroup")
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    with limit:
        contention = Contention(schedule(Task(0, 1, 2)), [place])
        try:
            contention.update(1)
            (stressor,) = wait_until(lambda: stressors("stress-ng-cpu"), "the stressor")
            pids = (worker.pid, stressor.pid)
            began, before = time.monotonic(), [cpu_seconds(pid) for pid in pids]

            def halved():
                used = [cpu_seconds(pid) - then for pid, then in zip(pids, before, strict=True)]
                assert sum(used) < 0.42 * (time.monotonic() - began) + 0.05  # both are within one quota
                return min(used) > 0.4 and 0.45 < used[0] / sum(used) < 0.55

            wait_until(halved, "one half for each")
            contention.update(2)
            wait_until(lambda: not stressors(), "the stressor's end")
            gone = cpu_seconds(worker.pid)
            wait_until(lambda: cpu_seconds(worker.pid) > gone + 0.1, "the worker's going on")
        finally:
            contention.close()

    assert contention.started == 1
