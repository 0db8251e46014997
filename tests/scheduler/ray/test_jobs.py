"""Jobs on real Ray clusters: brought up, left and attached to again, hit by faults, and ended."""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from tests import ROOT
from tests.evenpace.dashboard.live_pages import Page
from tests.scheduler.ray.submitted import FormedGroup, Jobs, left_folders

pytest.importorskip("ray", reason="Ray is not installed: pip install 'evenpace[ray]'")

from lab.ray_nodes import RayNode

pytestmark = [pytest.mark.slow, pytest.mark.ci]


@pytest.fixture(scope="module")
def temporary():
    """A folder of all temporary files of processes; Ray's sockets need a short path."""
    with tempfile.TemporaryDirectory(prefix="evenpace-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def head(tmp_path_factory, temporary):
    """The only node of a cluster."""
    folder = tmp_path_factory.mktemp("ray")
    with RayNode("head", folder, cpus=4, environment={"TMPDIR": str(temporary)}) as node:
        yield node


@pytest.fixture
def jobs(head, tmp_path):
    """Commands about jobs on that cluster."""
    return Jobs(tmp_path, head.environment, head.address)


def _started_since(before, temporary):
    """Processes of clusters whose temporary files are in a folder."""
    after = [one for one in psutil.process_iter(["cmdline"]) if one.pid not in before]
    return [one for one in after if str(temporary) in " ".join(one.info["cmdline"] or ())]


@pytest.mark.release  # each starts a cluster
@pytest.mark.parametrize("group", [True, False], ids=["process group", "all processes"])
def test_sigterm_ends_a_job_with_its_own_cluster(tmp_path, temporary, wait_until, group):
    """It ends as by Ctrl-C; where Ray itself is sent the signal, too, the job can be resumed."""
    before = set(psutil.pids())
    jobs = Jobs(tmp_path, {"HOME": str(tmp_path), "TMPDIR": str(temporary)})
    with jobs.submit("alone", iterations=100_000, pace=0.02) as command:
        wait_until(lambda: "running, iteration" in command.text, "an iteration")
        command.terminate(group=group)
        assert command.end(40) == 130, command.text
        assert ("--resume goes on with the job" in command.text) == (not group)
    result = jobs.storage / "alone/result.json"
    assert result.exists() == group
    assert not group or json.loads(result.read_text())["state"] == "cancelled"
    wait_until(lambda: not _started_since(before, temporary), "the end of the cluster")
    assert not jobs.processes("alone")
    assert not left_folders(temporary)


def test_whatever_ends_is_started_again(jobs, head, wait_until):
    """A worker, the manager, a shard, an actor and the controller are killed: the result is one process's."""
    with jobs.submit(
        "killed", "--shards", 2, "--ps-options", "--checkpoint-every 20", iterations=400, pace=0.02
    ) as command:
        wait_until(lambda: "running, iteration" in command.text, "an iteration")
        for name in ("w1", "manager", "ps-1"):
            (process,) = wait_until(lambda name=name: jobs.processes("killed", name), f"a start of {name}")
            wait_until(lambda: len(jobs.processes("killed")) == 5, "the start of all")
            process.kill()
            wait_until(
                lambda name=name: f"{name} is started again" in jobs.log("killed"), f"a restart of {name}"
            )
        (worker,) = wait_until(lambda: jobs.processes("killed", "w0"), "a start of w0")
        worker.parent().kill()  # its actor
        wait_until(lambda: "w0 is lost" in jobs.log("killed"), "the loss of w0")
        (controller,) = [one for one in head.processes if "ray::Controller" in one.cmdline()[0]]
        controller.kill()
        wait_until(lambda: "the job's controller was started again" in jobs.log("killed"), "a new controller")
        assert command.end() == 0, command.text
    jobs.assert_trained("killed", 400)
    assert not jobs.processes("killed")


def test_a_job_is_left_attached_to_and_ended(jobs, temporary, tmp_path, wait_until):
    """Ctrl-C leaves a job, which goes on; `attach` lists and follows it; ended, it leaves nothing."""
    with jobs.submit("left", iterations=100_000, pace=0.02) as command:
        wait_until(lambda: "running, iteration" in command.text, "an iteration")
        command.interrupt()
        assert command.end() == 0
        assert "the job goes on: evenpace attach left" in command.text
    assert jobs.processes("left", "w0")
    with (
        jobs.run("attach") as listing,
        jobs.run("attach", "left", "--access", tmp_path / "access") as access,
        jobs.submit("left") as another,
    ):
        assert listing.end() == 0
        assert listing.out.read_text() == "left\n"
        assert another.end() == 1
        assert "job 'left': one of this name runs on the cluster" in another.text
        assert access.end() == 0
        options = access.out.read_text().split()
    line = [sys.executable, "-m", "evenpace", "status", "left", "--json", *options]
    status = subprocess.run(line, capture_output=True, text=True, timeout=60, check=True, cwd=ROOT)
    assert [member["worker"] for member in json.loads(status.stdout)["jobs"][0]["members"]] in (
        ["w0", "w1"],
        ["w1", "w0"],
    )
    _assert_page(jobs, "left", (tmp_path / "access/token").read_text(), wait_until)
    with jobs.run("attach", "left", "--end") as command:
        assert command.end() == 130
        assert "w0 | " in command.text or "manager | " in command.text
    assert not jobs.processes("left")
    assert not left_folders(temporary)
    with jobs.run("attach") as listing, jobs.run("attach", "left") as command:
        assert listing.end() == 0
        assert listing.out.read_text() == ""
        assert command.end() == 1
        assert "job 'left': no such job runs on the cluster; there are: none" in command.text


def _is_on(page, name):
    """Whether a page answers, and shows a job."""
    try:
        return page.shows(name) is not None
    except ConnectionError:
        return False


def _assert_page(jobs, name, token, wait_until):
    """Check that a page about a job is there as long as it is followed, which who has its token can use."""
    with jobs.run("attach", name, "--http", "127.0.0.1:0") as command:
        said = wait_until(lambda: re.search(r"page on (http://127\.0\.0\.1:\d+/)", command.text), "a page")
        page = Page(said[1], None, None, None)
        wait_until(lambda: _is_on(page, name), "the job on the page")
        assert page.change(name, {"paused": False})[0] == 403
        status, said = page.change(name, {"paused": False}, token.strip())
        assert (status, said["said"]) == (200, "the job is not paused")
        command.interrupt()
        assert command.end() == 0
    with pytest.raises(ConnectionError):
        page.get("/api/jobs")


@pytest.mark.release
def test_a_job_that_did_not_finish_is_resumed(jobs, wait_until):
    """It goes on from its state if this is asked for, and else is refused; a finished one stays."""
    with jobs.submit("again", "--ps-options", "--checkpoint-every 10", iterations=300, pace=0.05) as command:
        wait_until(lambda: "running, iteration" in command.text, "an iteration")
        with jobs.run("attach", "again", "--end") as end:
            end.end()
        assert command.end() == 130
    with jobs.submit("again", iterations=300) as command:
        assert command.end() == 1
        assert "of this name that did not finish: --resume goes on with it" in command.text
    with jobs.submit("again", "--resume", iterations=300) as command:
        assert command.end() == 0, command.text
        assert "for iteration 0 on" not in command.text
    jobs.assert_trained("again", 300)
    for more in ((), ("--resume",)):
        with jobs.submit("again", *more) as command:
            assert command.end() == 1
            assert "is the folder of a job of this name that is done" in command.text
    jobs.assert_trained("again", 300)
    assert json.loads((jobs.storage / "again/result.json").read_text())["state"] == "done"


def test_an_address_without_a_cluster_is_named(tmp_path):
    """At once, where Ray alone would try for minutes."""
    with Jobs(tmp_path, {"HOME": str(tmp_path)}, "127.0.0.1:1").run("attach", "nobody") as command:
        assert command.end() == 1
        assert "Error: cannot reach the Ray cluster at 127.0.0.1:1: " in command.text


def test_the_doctor_looks_at_a_cluster(head, tmp_path):
    """Its findings are about each node, and the disk that jobs are to share; nothing is left there."""
    storage = tmp_path / "storage"
    line = [sys.executable, "-m", "evenpace", "doctor", "--ray", head.address, "--storage", storage, "--json"]
    environment = {**os.environ, **head.environment}
    done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=60, check=False)
    findings = json.loads(done.stdout)["findings"]
    found = [(one["level"], one["found"]) for one in findings if one["subject"].startswith("Ray")]
    assert [level for level, _ in found] == ["ok", "ok", "note"], found
    assert found[0][1].startswith("1 node, Ray 2.")
    assert found[1][1].startswith("4 CPUs for workers, Python 3.")
    assert found[2][1] == f"{storage} is on its only node; further nodes must share it"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("mode", ["", "token"])
def test_another_token_is_refused_in_words(head, tmp_path, mode):
    """At once, and in one line, whether this machine has none or sends none."""
    environment = {"HOME": str(tmp_path), "RAY_AUTH_MODE": mode}
    with Jobs(tmp_path, environment, head.address).run("attach") as command:
        assert command.end() == 1
        assert command.out.read_text().count("\n") == 1
        assert "it asks for a token, and this machine has none, or another one: set" in command.text


def test_a_job_that_cannot_run_says_why(jobs, tmp_path):
    """Of two jobs at once, one's script fails: the error has the end of the worker's log.

    The other's workers need more than any node has: they are named, with what they need, and the wait ends.
    """
    script = tmp_path / "broken.py"
    script.write_text("raise RuntimeError('no such luck')\n")
    with (
        jobs.submit("large", "--cpus-per-worker", 99, "--start-timeout", 20) as large,
        jobs.submit("broken", "--max-failures", 1, workers=1, script=script, arguments=()) as broken,
    ):
        assert large.end() == 1
        assert "w0 needs 99 CPU, which no node of the cluster has" in large.text
        assert "it could not start within 20 s: w0, w1 did not run" in large.text
        assert broken.end() == 1
        assert "job 'broken' failed: w0 ended with status 1" in broken.text
        assert "RuntimeError: no such luck" in broken.text
    assert not jobs.processes("broken")


def test_workers_of_all_reduce_come_and_go(jobs, wait_until):
    """The job grows, loses a worker and its manager, and shrinks: the parameters are one process's.

    Nobody is started again but what was killed.
    """
    with FormedGroup(jobs, "group", wait_until) as group:
        group.trains_with("w0", "w1")
        group.resize(3)
        group.trains_with("w0", "w1", "w2")
        for name in ("w1", "manager"):
            (process,) = jobs.processes("group", name)
            process.kill()
            wait_until(
                lambda name=name: f"{name} is started again" in jobs.log("group"), f"a restart of {name}"
            )
            group.trains_with("w0", "w1", "w2")
        group.resize(1)
        group.trains_with("w0")
        group.end()
    assert jobs.log("group").count("is started again") == 2


@pytest.mark.release  # the supervisor's own tests have the decision
def test_a_group_that_has_lost_its_parameters_ends_and_is_resumed(jobs, wait_until):
    """It does not begin anew by itself; resumed, it begins with its script's own checkpoint, if any."""
    with FormedGroup(jobs, "lost", wait_until, "--workers", 1) as group:
        group.trains_with("w0")
        jobs.processes("lost", "w0")[0].kill()
        assert group.status == 1
    assert (
        "job 'lost' failed: all members have gone, and with them its parameters; --resume starts"
        in group.text
    )
    with FormedGroup(jobs, "lost", wait_until, "--workers", 2, "--resume") as group:
        group.trains_with("w0", "w1")
        group.end()


@pytest.mark.release  # likewise, but for what the variables do
def test_a_fixed_group_starts_again_together(jobs, tmp_path, wait_until):
    """When one of a fixed group is killed, all are started again."""
    script = tmp_path / "group.py"
    script.write_text(_GROUP)
    go = tmp_path / "go"

    def groups():
        """The process ids of the groups that have taken a step."""
        return [{file.name.split("-")[1] for file in tmp_path.glob(f"{rank}-*-of-2")} for rank in (0, 1)]

    options = ("--all-reduce", "--fixed-group")
    with jobs.submit("fixed", *options, script=script, arguments=(go, tmp_path)) as command:
        wait_until(lambda: all(len(ids) == 1 for ids in groups()), "a group")
        jobs.processes("fixed", "w1")[0].kill()
        wait_until(lambda: all(len(ids) == 2 for ids in groups()), "another group")
        go.touch()
        assert command.end() == 0, command.text
    assert "manager is started again" in jobs.log("fixed")


def test_a_function_is_trained(head, tmp_path):
    """`Trainer.fit` calls it on each worker, and returns what was reported: in the program of a document."""
    document = (ROOT / "docs/ray.md").read_text()
    code = next(one for one in re.findall(r"```python\n(.*?)```", document, re.DOTALL) if "Trainer(" in one)
    program = tmp_path / "program.py"
    program.write_text(f"import ray\n\nray.init(address={head.address!r}, log_to_driver=False)\n{code}")
    environment = {**os.environ, **head.environment, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    printed = document.partition(code)[2].partition("```text\n")[2].partition("```")[0]
    assert printed in done.stdout


_GROUP = """
import os, sys, time
from pathlib import Path

import torch
from torch import distributed

import evenpace

go, folder = map(Path, sys.argv[1:])
distributed.init_process_group("gloo")
torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.rand(64, 4), torch.rand(64, 1))
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = evenpace.torch.DataLoader(data, batch_size=16)
model = evenpace.torch.balance(model, loader)
first = True
while first or not go.exists():
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        if first:
            first = False
            (folder / f"{distributed.get_rank()}-{os.getpid()}-of-{distributed.get_world_size()}").touch()
        if go.exists():
            break
    if go.exists():
        break
"""
