"""How a job has ended: the manager learns from each worker whether it has finished."""

import subprocess
import sys

import pytest

from batchsize_manager.client import ManagerClient
from idl.endings import FINISHED, GONE
from tests import ROOT
from tests.services import manager_service, serving, shard_service
from tests.worker.least_squares import Worker

TRAIN = """
import evenpace
from tests.scripts.train_least_squares import go_through
evenpace.connect({manager!r}, {shard!r})
for _ in go_through(evenpace.session(), 5):
    pass
"""


@pytest.mark.ci
@pytest.mark.parametrize(
    ("end", "status", "why"),
    [("raise SystemExit(0)", 0, FINISHED), ("raise ValueError('no')", 1, GONE)],
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


def test_a_script_that_connects_by_itself_ends_well_where_it_is_drained_before_its_first_batch(
    tmp_path, wait_until
):
    """With a line, and status 0, as under `evenpace worker`."""
    with serving(manager_service(workers=3)) as manager, serving(shard_service()) as shard:
        other = Worker(manager, [shard], "other", 5)
        script = tmp_path / "train.py"
        text = TRAIN.format(manager=str(manager), shard=str(shard))
        script.write_text(f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{text}\n")
        with (
            subprocess.Popen([sys.executable, str(script)], stderr=subprocess.PIPE, text=True) as popen,
            ManagerClient(manager) as client,
        ):
            wait_until(lambda: [job.members for job in client.jobs().jobs] == [2], "both workers")
            names = [member.worker for member in client.status("default").members]
            client.drain("default", next(name for name in names if name != "other"))
            _, said = popen.communicate(timeout=60)
        other.session.close()
        other.join(60)
    assert popen.returncode == 0, said
    assert "drained by an operator; its script ends here" in said
    assert "Traceback" not in said


def test_what_a_script_leaves_to_the_end_is_done(tmp_path):
    """Its threads, its functions at exit, and what is yet to be written, by native code, too."""
    script = tmp_path / "train.py"
    script.write_text(
        "import atexit, ctypes, sys, threading\n"
        "native = ctypes.CDLL(None)\n"
        "atexit.register(print, 'at exit')\n"
        "last = threading.Timer(0.2, print, ['a thread'])\n"
        "last.start()\n"
        "native.printf(b'native\\n')\n"
        "sys.exit(3)\n"
    )
    command = [sys.executable, "-m", "evenpace", "worker", "--manager", "127.0.0.1:1", str(script)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 3, done.stderr
    assert sorted(done.stdout.splitlines()) == ["a thread", "at exit", "native"]
