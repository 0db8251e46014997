"""docker-compose.yml: a cluster with one command, of any size, that leaves nothing."""

import json
import os
import re
import subprocess
import urllib.request
import uuid

import pytest

from tests.containers.engine import ROOT, Container, compose_command, cpu_limit, docker, labelled
from tests.lab.mnist import mnist_files, write
from tests.services import address_of_our_own

pytestmark = [pytest.mark.containers, pytest.mark.slow]

ONE_SPEED = ("up", "--detach", "--no-build", "--scale", "worker-medium=0", "--scale", "worker-slow=0")
SETTINGS = ("WORKERS", "POLICY", "PREDICTOR", "SCRIPTS", "TRAIN", "DATA", "PAGE_PORT", "BASE_IMAGE")


class Project:
    """A project of compose's, with a name of its own."""

    def __init__(self, command, env_file):
        self.name = f"evenpacetest{uuid.uuid4().hex[:8]}"
        self.page_port = address_of_our_own().port
        self._command = [*command, "--env-file", str(env_file), "--project-name", self.name]

    def __call__(self, *arguments, check=True, **settings):
        """Run compose with settings; what it printed."""
        environment = {name: value for name, value in os.environ.items() if name not in SETTINGS}
        done = subprocess.run(
            [*self._command, *arguments],
            cwd=ROOT,
            env=environment | {"PAGE_PORT": str(self.page_port), **settings},
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        assert not check or not done.returncode, done.stderr
        return done.stdout + done.stderr

    @property
    def label(self):
        """Return the label that compose puts on everything it makes."""
        return f"com.docker.compose.project={self.name}"

    def containers(self, service):
        """A service's containers."""
        filters = [f"label={self.label}", f"label=com.docker.compose.service={service}"]
        ids = docker("ps", "--all", "--quiet", *(f"--filter={one}" for one in filters)).splitlines()
        return [Container(each, f"{self.name}_cluster") for each in ids]

    def workers(self):
        """All containers of workers, whatever their speed."""
        names = ("worker", "worker-medium", "worker-slow")
        return [container for name in names for container in self.containers(name)]

    def end_well(self):
        """Return whether no worker runs any more, and each has ended with status 0."""
        states = [worker.inspect("State") for worker in self.workers()]
        return all(state["Status"] == "exited" and state["ExitCode"] == 0 for state in states)


@pytest.fixture
def project(tmp_path):
    """A project that is down in the end, whatever happens."""
    command = compose_command()
    if command is None:
        pytest.skip("neither docker compose nor docker-compose is there")
    env_file = tmp_path / "env"  # not the user's own .env
    env_file.touch()
    project = Project(command, env_file)
    try:
        yield project
    finally:
        print(project("logs", "--no-color", check=False))  # noqa: T201 - pytest shows it with a failure
        project("down", "--volumes")


def test_a_scaled_cluster_trains_and_down_leaves_nothing(project, wait_until):
    """Five workers under three limits train together; after down there is no trace of them."""
    project(
        *("up", "--detach", "--no-build", "--scale", "worker=3"), WORKERS="5", TRAIN="train.py --epochs 2"
    )
    assert len(project.workers()) == 5
    # The limits themselves: how far they slow workers down depends on what else the machine does.
    for service, cores in {"worker": 1.0, "worker-medium": 0.5, "worker-slow": 0.25}.items():
        assert {cpu_limit(container)[0] for container in project.containers(service)} == {cores}
    wait_until(project.end_well, "the end of training", 240)
    joined = set(re.findall(r"job default: (\S+) joined", project("logs", "--no-color", "manager")))
    assert len(joined) == 5
    # The page is there for this machine, and for reading, since it cannot tell who asks from outside.
    with urllib.request.urlopen(f"http://127.0.0.1:{project.page_port}/api/page", timeout=30) as answer:
        assert json.load(answer)["change"] == "none"
    lines = [re.findall(r"epoch \d+ of 2: .*batches \[(.*)\]", worker.logs()) for worker in project.workers()]
    for parts in zip(*lines, strict=True):  # of one epoch: 1,437 samples in batches of 480, 480 and 477
        sizes = [[int(part) for part in line.split(",")] for line in parts]
        assert [sum(sizes_of_batch) for sizes_of_batch in zip(*sizes, strict=True)] == [480, 480, 477]

    assert set(labelled(project.label)) == {"container", "network", "volume"}
    project("down", "--volumes")
    assert not labelled(project.label)


def test_a_restarted_manager_goes_on_with_the_job(project, wait_until):
    """The workers train on, and nobody begins anew."""
    project(*ONE_SPEED, "--scale", "worker=2", WORKERS="2", TRAIN="train.py --epochs 8")
    wait_until(lambda: "epoch 2 " in project.containers("worker")[0].logs(), "the second epoch")
    project("restart", "manager")
    wait_until(project.end_well, "the end of training", 240)
    assert [worker.inspect("RestartCount") for worker in project.workers()] == [0, 0]
    assert all("epoch 8 of 8" in worker.logs() for worker in project.workers())


def test_data_are_mounted_read_only(project, tmp_path, wait_until):
    """Workers train on the data of the folder that DATA names, and cannot write to it."""
    folder = tmp_path / "data"
    write(folder, mnist_files())  # 20 samples to train on
    folder.chmod(0o777)  # so that only the mount forbids writing
    training = "train.py --data mnist:/data --epochs 3 --batch-size 20"
    settings = {"WORKERS": "1", "DATA": str(folder), "TRAIN": training}
    project(*ONE_SPEED, **settings)
    wait_until(project.end_well, "the end of training")
    assert "epoch 3 of 3" in project.containers("worker")[0].logs()
    refused = project(
        "run", "--rm", "-T", "--no-deps", "--entrypoint=touch", "worker", "/data/x", check=False, **settings
    )
    assert "Read-only file system" in refused
    assert {path.name for path in folder.iterdir()} == set(mnist_files())
