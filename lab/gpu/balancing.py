"""Processes that share the GPU and are made uneven: an even split against balanced ones.

The splits come from the manager's own job and policies, in this process; nothing goes over a wire.
"""

import itertools
import multiprocessing
import time
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

import torch

from batchsize_manager.job.config import JobConfig
from batchsize_manager.job.job import Job
from batchsize_manager.policies import POLICIES, make_policy
from idl.bounds import Bounds
from idl.plan import JobSpec
from idl.records import Report
from lab.gpu.models import workloads
from lab.gpu.setup import Setup, seconds

_PER_WORKER = 128  # samples of the even split
_ITERATIONS = 250  # the first of which are the way to the balance
_WANTED = ("even", "leader_straggler", "learned")


def run(setup: Setup) -> dict[str, Any]:
    """Iteration times of 2 to 4 processes, by number and policy; process i takes i + 1 times the work."""
    most = 2 if setup.quick else 4
    names = [name for name in _WANTED if name in POLICIES]
    runs = [(workers, name) for workers in range(2, most + 1) for name in names]
    fork = multiprocessing.get_context("fork")  # nothing here has touched the GPU yet
    ends, processes = [], []
    for slowness in range(1, most + 1):
        near, far = fork.Pipe()
        processes.append(fork.Process(target=_work, args=(far, slowness, setup), daemon=True))
        processes[-1].start()
        ends.append(near)
    result: dict[str, Any] = {"policies_missing": [name for name in _WANTED if name not in POLICIES]}
    try:
        for end in ends:
            _answer(end, setup)  # it is ready
        for (workers, name), share in setup.shared(runs):
            result.setdefault(str(workers), {})[name] = _train(ends[:workers], name, share, setup)
    finally:
        for end in ends:
            end.send(None)  # closing it would not do: later processes have inherited it
        for process in processes:
            process.join(10)
            process.kill()
    for by_name in result.values():
        if isinstance(by_name, dict):
            for name in names[1:]:
                by_name[name]["speed_up"] = by_name["even"]["iteration_s"] / by_name[name]["iteration_s"]
    return result


def _train(ends: list[Connection], policy: str, share: Setup, setup: Setup) -> dict[str, Any]:
    """Go through iterations under a policy; figures are medians over the last third.

    Args:
        share: Until when iterations begin.
        setup: Until when processes must answer.
    """
    total = len(ends) * (2 if setup.quick else _PER_WORKER)
    job = Job(JobSpec(10**9, total), JobConfig(workers=len(ends)), make_policy(policy))
    names = [f"process-{i}" for i in range(len(ends))]
    for name in names:
        job.join(name, name, Bounds(), 0.0)
    durations, counts, processing = [], [], []
    for iteration in range(3 if setup.quick else _ITERATIONS):
        if share.left < 0 and iteration >= 3:
            break
        parts = [job.next_assignment(name, name) for name in names]
        begin = time.perf_counter()
        for end, part in zip(ends, parts, strict=True):
            assert part is not None
            end.send(part.count)
        times = [_answer(end, setup) for end in ends]
        durations.append(time.perf_counter() - begin)
        counts.append([part.count for part in parts if part is not None])
        processing.append(times)
        for name, taken in zip(names, times, strict=True):
            job.report(name, name, Report(iteration, max(taken, 1e-6)), time.monotonic())
        job.take_effects()
    assert all(sum(split) == total for split in counts)
    last = len(durations) // 3
    return {
        "iterations": len(durations),
        "iteration_s": median(durations[-last:]),
        "processing_s": [median(times) for times in zip(*processing[-last:], strict=True)],
        "batch_sizes": counts[-1],
        "changes": sum(a != b for a, b in itertools.pairwise(counts)),
    }


def _answer(end: Connection, setup: Setup) -> float:
    if not end.poll(max(5.0, setup.left)):
        raise TimeoutError("a process that shares the GPU does not answer")
    answer = end.recv()
    if isinstance(answer, str):
        raise RuntimeError(f"a process that shares the GPU failed: {answer}")
    return float(answer)


def _work(end: Connection, slowness: int, setup: Setup) -> None:
    """A process: batch sizes in, seconds out; each batch is gone through `slowness` times."""
    try:
        torch.set_num_threads(1)
        workload = workloads(setup.quick)["resnet32"]
        step = workload.step(setup.device)
        step(*workload.batch(2, setup.device))
        end.send(0.0)
        while (count := end.recv()) is not None:
            if not count:
                end.send(0.0)
                continue
            batch = workload.batch(count, setup.device)

            def steps(batch: Any = batch) -> None:
                for _ in range(slowness):
                    step(*batch)

            end.send(seconds(steps, setup.device))
    except EOFError:
        return
    except Exception as error:  # noqa: BLE001 - told to the one who asks
        end.send(f"{type(error).__name__}: {error}")
