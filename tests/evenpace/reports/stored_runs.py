"""Writes a manager's state as a manager does, with runs whose numbers are known."""

import math
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from batchsize_manager.job.batch_sizes import BatchChange
from batchsize_manager.job.state import JobState, SavedMember
from batchsize_manager.policies.solver import split
from batchsize_manager.storage.changes import Begun, Change, Completed, Ended, Logged
from batchsize_manager.storage.state_file import StateFile
from batchsize_manager.storage.state_format import STATE_FILE
from idl.bounds import Bounds
from idl.plan import JobSpec
from idl.records import IterationRecord, WorkerRecord

EVEN = 60  # samples of each worker in a batch that is split evenly
BOUNDS = Bounds(1, 10**6, 1)


def worker_names(count: int) -> list[str]:
    """Return the workers' names in all these runs."""
    return [f"worker-{i}" for i in range(count)]


def records(
    workers: int,
    iterations: int,
    late: int = 0,
    total_of: Callable[[int], int] | None = None,
    **shares: float,
) -> list[IterationRecord]:
    """Iterations of workers of unequal speed, that an average over the past has split.

    Args:
        workers: How many.
        iterations: Likewise.
        late: The last worker comes with this iteration.
        total_of: Function from an iteration to its batch's samples; None: `EVEN` for each worker.
        **shares: Further times of a worker's record, as shares of its batch processing time.
    """
    random = np.random.default_rng(1)
    names = worker_names(workers)
    speeds = np.resize([400.0, 200.0, 100.0, 50.0], workers)
    known = np.ones(workers)
    made, start = [], 0
    for number in range(iterations):
        there = np.arange(workers if number >= late else workers - 1)
        total = EVEN * workers if total_of is None else total_of(number)
        counts = np.array(split(known[there].tolist(), total, [BOUNDS] * len(there)))
        shown = speeds * random.normal(1, 0.05, workers)
        times = counts / shown[there]
        duration = float(times.max()) + 0.01
        parts = {
            names[i]: WorkerRecord(
                int(counts[k]),
                float(times[k]),
                float(duration - times[k]),
                0.25,
                0.5,
                float(known[i]) if number else math.nan,
                communication_time=0.1 * float(times[k]),
                **{field: share * float(times[k]) for field, share in shares.items()},
            )
            for k, i in enumerate(there)
        }
        made.append(IterationRecord.of(number, 0, total, duration, parts, 0, start))
        start += total
        known = shown if not number else 0.8 * known + 0.2 * shown
    return made


def write_run(
    folder: Path,
    iterations: list[IterationRecord],
    run: str = "f00dcafe" + 24 * "0",
    job: str = "digits",
    ending: str | None = "all workers left",
    said: tuple[str, ...] = (),
) -> Path:
    """Put a run into the state in a folder, which is made if there is none; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    begun = time.time() - sum(record.duration for record in iterations) - 60
    names = list(iterations[-1].workers) if iterations else ["worker-0"]
    spec = JobSpec(10**9, EVEN * len(names), 3, True, False)
    members = tuple(SavedMember(name, f"{name}-1", BOUNDS) for name in names)
    began = BatchChange(0, 0, 0, spec.total_batch_size)
    state = JobState(spec, "bsp", (began,), spec.total_batch_size, members=members)
    changes: list[Change] = [Begun(run, job, "proportional", state, begun)]
    changes += [Logged(run, event, begun + 1) for event in said]
    at = begun
    for record in iterations:
        at += record.duration
        changes.append(Completed(run, record, at))
    if ending is not None:
        changes.append(Ended(run, ending, at))
    file = StateFile(folder / STATE_FILE)
    file.apply(changes)
    file.close()
    return folder
