"""How a job has ended: the manager learns from each worker whether it has finished."""

import subprocess
import sys

import pytest

from batchsize_manager.client import ManagerClient
from idl.endings import FINISHED, GONE
from tests import ROOT
from tests.services import manager_service, serving, shard_service

TRAIN = """
import evenpace
from tests.scripts.train_least_squares import go_through
evenpace.connect({manager!r}, {shard!r})
for _ in go_through(evenpace.session(), 5):
    pass
"""


@pytest.mark.parametrize(
    ("end", "status", "why"),
    [("", 0, FINISHED), ("raise SystemExit(0)", 0, FINISHED), ("raise ValueError('no')", 1, GONE)],
)
@pytest.mark.parametrize("started", ["connect", "worker"])
def test_a_job_has_ended_well_if_its_worker_has(tmp_path, started, end, status, why):
    """Whether `evenpace worker` runs the script, or Python."""
    with serving(manager_service()) as manager, serving(shard_service()) as shard:
        text = TRAIN.format(manager=str(manager), shard=str(shard)) + end
        command = [sys.executable]
        if started == "worker":
            text = "\n".join(line for line in text.splitlines() if "connect" not in line)
            command += ["-m", "evenpace", "worker", "--manager", str(manager), "--ps", str(shard)]
        script = tmp_path / "train.py"
        script.write_text(f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{text}\n")
        done = subprocess.run([*command, str(script)], check=False, capture_output=True, text=True)
        assert done.returncode == status, done.stderr
        with ManagerClient(manager) as client:
            (job,) = client.jobs().jobs
            events = [event.text for event in client.status(job.job).events]
    assert (job.state, job.reason) == ("ended", why)
    assert events[-1].endswith("left" if why == FINISHED else "left after an error")
