"""Two runs in a manager's state, one split evenly and one balanced, and what the demo would know besides."""

import time
from pathlib import Path

from batchsize_manager.storage.state_reader import open_state
from evenpace.reports.run_data import RunReport, gather
from evenpace.reports.run_list import choose, stored_runs
from evenpace.reports.two_runs import ComparedRun, Evaluation, TwoRuns
from idl.records import IterationRecord
from tests.evenpace.reports.stored_runs import EVEN, records, worker_names, write_run


def split_evenly(record: IterationRecord) -> IterationRecord:
    """The iteration as the same workers would have had it with an even split."""
    before = record.parts
    times = {name: part.batch_processing_time * EVEN / part.batch_size for name, part in before.items()}
    duration = max(times.values()) + 0.01
    parts = {
        name: part._replace(batch_size=EVEN, batch_processing_time=time, waiting_time=duration - time)
        for (name, part), time in zip(before.items(), times.values(), strict=True)
    }
    return IterationRecord.of(
        record.iteration, record.epoch, record.total, duration, parts, record.attempt, record.start
    )


def write_two(folder: Path, workers: int = 4, iterations: int = 40) -> Path:
    """Put both runs into the state in a folder; returns the folder."""
    balanced = records(workers, iterations)
    write_run(folder, [split_evenly(record) for record in balanced], run="aa" + 30 * "0", job="even")
    return write_run(folder, balanced, run="bb" + 30 * "0", job="balanced")


def gathered(state: Path, job: str) -> RunReport:
    """The report of a stored run."""
    with open_state(state) as reader:
        return gather(choose(stored_runs(reader, "a state"), job), time.time(), lambda count: None)


def make_two(state: Path, workers: int = 4) -> TwoRuns:
    """Both runs as the demo compares them."""
    curve = [Evaluation(float(number), 2.3 * 0.97**number, 1 - 0.9 * 0.97**number) for number in range(10)]
    return TwoRuns(
        ComparedRun(gathered(state, "even"), "Even split", curve),
        ComparedRun(gathered(state, "balanced"), "Balanced", curve),
        about="digits, limited by cgroup v1",
        notes=("The ideal for these shares is 3.75 times.",),
        shares={name: 0.8 / 2 ** (number % 4) for number, name in enumerate(worker_names(workers))},
    )
