"""The verdict of `evenpace lab chaos --with all-reduce` on a training, and on one with a planted fault."""

import contextlib
import json
import re
import shutil

import numpy as np
import pytest

from lab.chaos import chaos_run
from lab.chaos.config import ChaosConfig
from lab.chaos.verdict import judge

JOB, WORKERS = "job-0", ("w0", "w1")
SETTINGS = ChaosConfig(0.05, 3, ("kill", "join"), len(WORKERS), exchange="all-reduce", gap=2.0)

pytestmark = [pytest.mark.slow, pytest.mark.ci]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Two workers, of which one is killed or the manager is, and a third that joins and leaves."""
    return chaos_run._finished_run(SETTINGS, tmp_path_factory.mktemp("finished"), [])


class Copy:
    """A copy of what the run has written, to be changed and judged."""

    def __init__(self, run, folder):
        self.folder = shutil.copytree(run.cluster.folder, folder)
        self.history = json.loads(json.dumps(run.history))
        self._run = run

    def judged(self):
        """The violations."""
        cluster = self._run.cluster
        kept, cluster.folder = cluster.folder, self.folder
        try:
            return judge(cluster, self._run.storm, self._run.progress, self.history, []).violations
        finally:
            cluster.folder = kept

    @contextlib.contextmanager
    def lines(self, worker):
        """The lines of a worker's last journal, to be changed."""
        *_, file = sorted((self.folder / "journals").glob(f"{worker}-*.jsonl"))
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        yield lines
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def last(self, lines, what, back=5):
        """The number of the line about an iteration some way before the last."""
        iteration = max(line[2] for line in lines) - back
        return next(n for n, line in enumerate(lines) if (line[0], line[2]) == (what, iteration))


@pytest.fixture
def copy(finished, tmp_path):
    """A copy."""
    return Copy(finished, tmp_path / "copy")


def test_a_run_under_faults_has_no_violation(finished):
    """Parameters are those of one process to rounding; no attempt lacks a step."""
    assert finished.problems == []
    outcome = judge(finished.cluster, finished.storm, finished.progress, finished.history, [])
    assert outcome.violations == []
    found = outcome.jobs[JOB]
    assert found.rewinds >= 2
    assert found.compared > 2
    assert 0 < found.error < 1e-10


def test_a_step_that_nobody_took_is_seen(copy):
    """It is missing in all journals."""
    for worker in WORKERS:
        with copy.lines(worker) as lines:
            del lines[copy.last(lines, "stepped")]
    said = copy.judged()
    assert any(
        re.match(r"all-reduce: step \d+ in attempt \d+, where step \d+ .* was due", one) for one in said
    )


def test_samples_that_two_workers_have_are_seen(copy):
    """The parts that were computed make up no batch."""
    with copy.lines("w0") as lines:
        lines[copy.last(lines, "computed")][4] += 1
    assert any(re.match(r"all-reduce: iteration \d+", one) for one in copy.judged())


def test_one_bit_that_differs_between_workers_is_seen(copy):
    """It is far below the tolerance against one process."""
    path = copy.folder / "parameters" / "w1.npz"
    with np.load(path) as saved:
        values = dict(saved)
    values["parameters"][100] = np.nextafter(values["parameters"][100], 1.0)
    np.savez(path, **values)
    assert copy.judged() == ["workers ended with other bits than others: w0 and w1"]
