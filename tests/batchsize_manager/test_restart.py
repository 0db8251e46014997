"""A job restored from a manager's state: its plans are those of a twin that was never away.

The file itself is tested in `test_state`, workers whose manager is restarted in `test_manager_restart`.
"""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import idl
from batchsize_manager import control
from batchsize_manager.job.config import JobConfig
from batchsize_manager.job.job import Job
from batchsize_manager.learning.learning import Learning
from batchsize_manager.learning.saved_models import pack_models
from batchsize_manager.managed_job import ManagedJob
from batchsize_manager.policies import PolicyOptions
from batchsize_manager.restart import restore_jobs
from batchsize_manager.storage.state_writer import StateWriter
from idl.bounds import Bounds
from idl.plan import JobSpec
from idl.records import Report
from rpc.limited_log import LimitedLog

_wire = idl.batchsize_manager

SPEC = JobSpec(1000, 32)
WORKERS = "ab"

pytestmark = pytest.mark.usefixtures("time_to_close")


class Manager:
    """The parts of a manager other than the wire; its jobs start with two workers."""

    def __init__(self, folder: Path, policy: str, options: PolicyOptions) -> None:
        config = JobConfig(workers=len(WORKERS))
        self.config = config
        self.learning = Learning(policy, options, None)
        self._limited_log = LimitedLog(logging.getLogger(__name__), 50, "%d more lines")
        self.writer = StateWriter(folder)

    def begin(
        self, first: int = 0, position: tuple[int, int] | None = None, learned: bytes = b"", name: str = "job"
    ) -> ManagedJob:
        """Begin a job that its workers have joined."""
        policy = self.learning.make_policy(learned)
        job = Job(SPEC, self.config, policy, first, position=position)
        join(job)
        return ManagedJob(
            name, f"run of {name}", job, self.learning.balancing, self.writer, self._limited_log
        )

    def restored(self) -> ManagedJob:
        """Return the one job that is restored."""
        ((restored,), _) = restore_jobs(self.writer, self.learning, self.config, self._limited_log)
        return restored

    def change(self, managed: ManagedJob, **what: object) -> None:
        """Make a change that an operator asks for."""
        control.apply(managed, _wire.ControlRequest(managed.name, **what), self.learning, 0.0)


@contextlib.contextmanager
def manager(
    folder: Path, policy: str = "proportional", options: PolicyOptions | None = None
) -> Iterator[Manager]:
    """Run a manager; at the end all that it was to keep is written."""
    started = Manager(folder, policy, options or PolicyOptions())
    try:
        yield started
    finally:
        started.writer.close()
        started.learning.close()


def keep(managed: ManagedJob) -> None:
    """Hand what is to be kept of a job to the writer."""
    managed.note(managed.job.take_effects())
    managed.hand_over()


def join(job: Job) -> None:
    """Let workers join that are no members."""
    for name in WORKERS:
        if name not in job.members:
            job.join(name, name, Bounds(), 0.0)


def seconds(name: str, iteration: int) -> float:
    """Return the seconds for a sample: `a` takes three times as long as `b`, every third time five times."""
    return (0.03 if iteration % 3 else 0.05) if name == "a" else 0.01


def train(job: Job, iterations: int) -> list[tuple[int, int, int, list[int]]]:
    """Go through iterations; return epoch, first position, total and counts of each."""
    plans = []
    for _ in range(iterations):
        parts = {name: job.next_assignment(name, name) for name in WORKERS}
        for name, part in parts.items():
            took = seconds(name, part.iteration) * part.count
            report = Report(part.iteration, took, attempt=part.attempt, start=part.start)
            job.report(name, name, report, 0.0)
        plans.append((part.epoch, part.batch_start, part.total, [part.count for part in parts.values()]))
    return plans


def plans_from(job: Job, iteration: int) -> list[tuple[int, int, int, list[int]]]:
    """Return the plans of another attempt that begins with an iteration; see `train`."""
    if not job.attempts.is_recovering:
        job.recover("a", "a", job.attempts.number, 0.0)
    join(job)
    for name in WORKERS:
        if (attempt := job.must_recover(name, name)) is not None:
            job.rewind(name, name, attempt, iteration, 0.0)
    return train(job, 7)


@pytest.mark.parametrize(
    ("policy", "options", "wanted"),
    [
        ("even", PolicyOptions(), _wire.Balancing("proportional")),
        ("proportional", PolicyOptions(), _wire.Balancing("even")),
        ("proportional", PolicyOptions("ema"), _wire.Balancing("proportional", "memoryless")),
        ("proportional", PolicyOptions("memoryless", 0.9), _wire.Balancing("proportional", tolerance=0.0)),
    ],
    ids=["policy", "no policy", "predictor", "tolerance"],
)
def test_batches_are_split_as_an_operator_wanted(tmp_path, policy, options, wanted):
    """A restored job keeps an operator's policy, predictor or tolerance in place of the manager's."""
    with manager(tmp_path, policy, options) as first:
        unchanged, managed = first.begin(name="unchanged"), first.begin()
        for one in (unchanged, managed):
            train(one.job, 4)
        first.change(managed, balancing=wanted)
        for one in (unchanged, managed):
            train(one.job, 2)
        keep(managed)
    with manager(tmp_path, policy, options) as second:
        restored = second.restored()
    plans = plans_from(restored.job, 6)
    assert plans == plans_from(managed.job, 6)
    assert plans != plans_from(unchanged.job, 6)


def test_models_from_before_the_job_began_are_restored(tmp_path):
    """Models from a checkpoint are restored although no iteration has shown them again."""
    models = {"learned": {"a": times_of("a"), "b": times_of("b")}}
    with manager(tmp_path, "learned") as first:
        unaware, managed = first.begin(name="unaware"), first.begin(learned=pack_models(models))
        keep(managed)
    with manager(tmp_path, "learned") as second:
        restored = second.restored()
    plans = plans_from(restored.job, 0)
    assert plans == plans_from(managed.job, 0)
    assert plans[0] != plans_from(unaware.job, 0)[0]


def times_of(name: str) -> dict[str, np.ndarray]:
    """Return the learned policy's model of a worker that has had batches of these sizes."""
    sizes = np.array([8.0, 16.0, 24.0])
    return {"sizes": sizes, "times": sizes * seconds(name, 1)}


def test_a_job_goes_on_at_the_position_of_its_checkpoint(tmp_path):
    """The position is restored though no iteration of the job has shown it."""
    with manager(tmp_path) as first:
        managed = first.begin(7, (3, 55))
        keep(managed)
    with manager(tmp_path) as second:
        restored = second.restored()
    plans = plans_from(restored.job, 7)
    assert plans[0][:3] == (3, 55, 32)
    assert plans == plans_from(managed.job, 7)
