"""Containers for the tests, through Docker's command line: a private network, services and workers on it.

Everything that is made carries a label of its own, by which all of it is removed.
"""

import json
import shutil
import subprocess
import sys
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.observer import Observer
from rpc.address import Address

IMAGES = {"manager": "evenpace-manager", "ps": "evenpace-ps", "worker": "evenpace-worker"}
CPU_PERIOD = 10_000  # microseconds
SCRIPTS = Path(__file__).parent.parent / "scripts"
ROOT = Path(__file__).parents[2]

_KINDS = ("container", "network", "volume")

# Prints a digest of the code below a folder, which the images must share with the working tree.
_DIGEST = """
import hashlib, pathlib, sys, sysconfig
digest = hashlib.sha256()
for package in "batchsize_manager", "evenpace", "idl", "predictors", "ps", "rpc", "worker":
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else sysconfig.get_path("purelib"))
    for path in sorted((folder / package).rglob("*.py")):
        digest.update(path.read_bytes())
print(digest.hexdigest())
"""


def docker(*arguments: str, timeout: float = 240.0) -> str:
    """Run a command of Docker's, and return its output; its failure is an error of the test."""
    done = subprocess.run(
        ["docker", *arguments], capture_output=True, text=True, check=False, timeout=timeout
    )
    assert not done.returncode, f"docker {' '.join(arguments)}: {done.stderr.strip()}"
    return done.stdout.strip()


def frozen(container: str) -> bool:
    """Try to freeze a container; whether it stands still. On a busy machine the engine gives up at times."""
    subprocess.run(["docker", "pause", container], capture_output=True, check=False, timeout=240)
    return docker("inspect", "--format", "{{.State.Paused}}", container) == "true"


def why_not() -> str | None:
    """Why no containers can be run here, in words for somebody who wants to; None if they can."""
    if shutil.which("docker") is None:
        return "no container engine: there is no docker command"
    try:
        docker("info")
    except (AssertionError, subprocess.TimeoutExpired) as error:
        return f"no container engine answers: {str(error).splitlines()[-1]}"
    there = docker("image", "ls", "--format", "{{.Repository}}").splitlines()
    missing = sorted(set(IMAGES.values()) - set(there))
    if missing:
        return f"no image {', '.join(missing)}: run make images"
    ours = subprocess.run(
        [sys.executable, "-c", _DIGEST, str(ROOT)], capture_output=True, text=True, check=True, timeout=60
    ).stdout.strip()
    run = ("run", "--rm", "--network=none", "--entrypoint=python")
    if any(docker(*run, image, "-c", _DIGEST) != ours for image in IMAGES.values()):
        return "the images were made from other code than this: run make images"
    return None


def compose_command() -> list[str] | None:
    """Compose as a plugin of Docker's, or on its own; None if there is neither."""
    for words in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(words[0]):
            done = subprocess.run([*words, "version"], capture_output=True, check=False, timeout=60)
            if not done.returncode:
                return words
    return None


def labelled(label: str) -> dict[str, list[str]]:
    """Return the ids of containers, networks and volumes with a label."""
    found = {
        kind: docker(
            kind, "ls", "--quiet", *(["--all"] if kind == "container" else []), "--filter", f"label={label}"
        ).splitlines()
        for kind in _KINDS
    }
    return {kind: ids for kind, ids in found.items() if ids}


def remove(label: str) -> None:
    """Remove all that has a label, whatever state it is in."""
    found = labelled(label)
    for kind in _KINDS:
        if kind in found:
            force = [] if kind == "network" else ["--force"]
            docker(kind, "rm", *force, *found[kind])


@dataclass(frozen=True)
class Container:
    """Container that runs or has ended."""

    id: str
    network: str

    def inspect(self, path: str) -> Any:
        """A value of `docker inspect`, by its path, such as "State.Pid"."""
        return json.loads(docker("inspect", "--format", "{{json ." + path + "}}", self.id))

    def run(self, *command: str) -> str:
        """Run a command in the container, and return its output."""
        return docker("exec", self.id, *command)

    def logs(self) -> str:
        """All output so far."""
        done = subprocess.run(
            ["docker", "logs", self.id],
            stdout=-1,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=60,
        )
        return done.stdout

    def wait(self, seconds: float = 240.0) -> int:
        """Wait for the end; the exit status."""
        return int(docker("wait", self.id, timeout=seconds))

    def address(self, port: int) -> Address:
        """Return the address at which this machine reaches a port of it."""
        return Address(self.inspect("NetworkSettings.Networks")[self.network]["IPAddress"], port)


def cpu_limit(container: Container) -> tuple[float, int]:
    """The quota that is in force in a container, in cores, and how often it took effect."""
    read = "cat /sys/fs/cgroup/cpu.max || cd /sys/fs/cgroup/cpu && cat cpu.cfs_quota_us cpu.cfs_period_us"
    quota, period = container.run("sh", "-c", f"({read}) 2>/dev/null").split()
    stat = container.run(
        "sh", "-c", "cat /sys/fs/cgroup/cpu.stat /sys/fs/cgroup/cpu/cpu.stat 2>/dev/null; true"
    )
    (throttled,) = (int(line.split()[1]) for line in stat.splitlines() if line.startswith("nr_throttled "))
    return int(quota) / int(period), throttled


class Cluster:
    """A manager and a parameter server on a private network, and the workers that are started on it.

    Args:
        folder: Where workers write; /out in them.
        workers: How many the job waits for.
        options: For all containers, to `docker run`.
    """

    def __init__(self, folder: Path, workers: int, options: Sequence[str] = ("--no-healthcheck",)) -> None:
        self._name = f"evenpace-test-{uuid.uuid4().hex[:8]}"
        self._label = f"evenpace.test={self._name}"
        self._folder = folder
        self._workers = workers
        self._options = options
        self._containers: list[tuple[str, Container]] = []

    def __enter__(self) -> "Cluster":
        self._folder.mkdir(exist_ok=True)
        self._folder.chmod(0o777)  # the images' user is not ours
        try:
            docker("network", "create", "--internal", "--label", self._label, self._name)
            service = ["--insecure", "--state", "/var/lib/evenpace"]
            self.manager = self._start("manager", "manager", [], [*service, "--workers", str(self._workers)])
            self.ps = self._start("ps", "ps", [], service)
        except BaseException:
            remove(self._label)
            raise
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            if error is not None:
                for name, container in self._containers:
                    print(f"-- {name}\n{container.logs()}")  # noqa: T201 - pytest shows it with the failure
        finally:
            remove(self._label)

    def start_worker(
        self, name: str, *arguments: str, cpus: float = 1.0, options: Sequence[str] = ()
    ) -> Container:
        """Start a worker on tests/scripts/train_float64.py, which writes /out/NAME.npy at its end.

        Args:
            name: The worker's.
            arguments: The script's.
            cpus: Cores that it may use.
            options: Of `evenpace worker`.
        """
        run = ["--volume", f"{SCRIPTS}:/scripts:ro", "--volume", f"{self._folder}:/out"]
        run += ["--cpu-period", str(CPU_PERIOD), "--cpu-quota", str(round(cpus * CPU_PERIOD))]
        script = ["/scripts/train_float64.py", "--out", f"/out/{name}.npy", *arguments]
        return self._start("worker", name, run, ["--name", name, *options, *script])

    def observer(self) -> Observer:
        """Watches the job, from outside of the containers."""
        return Observer(self.manager.address(4300), (self.ps.address(4400),))

    def _start(self, image: str, name: str, options: Sequence[str], arguments: Sequence[str]) -> Container:
        command = ["run", "--detach", "--label", self._label, "--name", f"{self._name}-{name}"]
        command += ["--network", self._name, "--network-alias", name, *self._options, *options]
        container = Container(docker(*command, IMAGES[image], *arguments), self._name)
        self._containers.append((name, container))
        return container
