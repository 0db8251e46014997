"""The cluster of an experiment, in containers: each part as its own, on a private network.

Driven through Docker's command line. The images are those of `docker/Dockerfile`; workers need the one with
stress-ng. Files that the processes of an experiment would share are mounted under their own names.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from evenpace.cpu_limits import LimitKind
from evenpace.lab.cluster import LocalCluster
from evenpace.lab.experiments.contention import ContainerPlace
from evenpace.logs import options_in_force
from evenpace.processes import Process, read_address
from idl.errors import EvenpaceError
from rpc.address import Address

_IMAGES = {"manager": "evenpace-manager", "ps": "evenpace-ps", "worker": "evenpace-worker-contention"}
_PORT = 4300
_PERIOD_US = 10_000  # of the CPU quota; the default of 100 ms would make short iterations pure noise


class ContainerError(EvenpaceError):
    """The container engine did not do what it was asked for; the message has its words."""


class ContainerCluster(LocalCluster):
    """As `LocalCluster`, but that each process runs in a container of its own.

    Raises:
        ContainerError: There is no engine, or an image is missing.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self._network = f"evenpace-{self._id}"
        self._memory: dict[str, int] = {}

    def start(self) -> None:
        """See `LocalCluster`; makes the network."""
        require_engine()
        docker("network", "create", self._network)
        super().start()

    def start_worker(
        self,
        name: str,
        script: Path,
        arguments: Sequence[str] = (),
        cpu_share: float | None = None,
        limit_kind: LimitKind = "auto",
        options: Mapping[str, str] | None = None,
    ) -> Process:
        """See `LocalCluster`; the engine limits the container's CPU, from its start on.

        Args:
            name: The worker's.
            script: Mounted, with its folder.
            arguments: Of the script. A folder or file that one names, as in cifar10:DIR, is mounted, too.
            cpu_share: Cores.
            limit_kind: Has no meaning here.
            options: More options of `evenpace worker`, by name; "--cpu" is the container's.
        """
        options = dict(options or {})
        limits = []
        if cpu_share is not None:
            limits += ["--cpu-period", str(_PERIOD_US), "--cpu-quota", str(round(cpu_share * _PERIOD_US))]
        if "--cpu" in options:
            limits += ["--cpuset-cpus", options.pop("--cpu")]
        mounts = [script.parent, *_named_files(arguments)]
        flags = [word for shard in self.shard_addresses for word in ("--ps", str(shard))]
        flags += [word for pair in options.items() for word in pair]
        line = ["--manager", str(self.manager), "--name", name, *flags, str(script), *arguments]
        return self._start_container(name, "worker", line, limits, mounts)

    def place(self, process: Process, cores: float, memory_bytes: int, cpu: int | None) -> ContainerPlace:
        """Where competitors of a worker run: in its container."""
        return ContainerPlace(self._container(process.name), cores, memory_bytes)

    def manager_pid(self) -> int:
        """The manager's process, as this machine numbers it."""
        return int(docker("inspect", "--format", "{{.State.Pid}}", self._container("manager")))

    def stop(self) -> None:
        """See `LocalCluster`; removes containers and network."""
        super().stop()
        names = docker("ps", "--all", "--quiet", "--filter", f"network={self._network}").split()
        if names:
            docker("rm", "--force", *names)
        if self._network in docker("network", "ls", "--format", "{{.Name}}").split():
            docker("network", "rm", self._network)

    def _start(self, name: str, command: str, *arguments: str) -> Process:
        listen = arguments.index("--listen") + 1
        # On a network of its own, which nobody else is on.
        line = [*arguments[:listen], f"0.0.0.0:{_PORT}", "--insecure", *arguments[listen + 1 :]]
        return self._start_container(name, command, line, [], _named_files(arguments))

    def _start_container(
        self, name: str, command: str, line: Sequence[str], limits: Sequence[str], files: Sequence[Path]
    ) -> Process:
        log = self.folder / f"{name}.log"
        folder = self.folder.resolve()
        mounts = [f"{folder}:{folder}", *(f"{file}:{file}:ro" for file in dict.fromkeys(files))]
        docker_line = [
            *("docker", "run", "--rm", "--name", self._container(name), "--network", self._network),
            # What it writes into the run's folder is to belong to whoever runs the experiment.
            *("--user", f"{os.getuid()}:{os.getgid()}", "--env", "HOME=/tmp", "--workdir", str(folder)),
            *(word for mount in mounts for word in ("--volume", mount)),
            *(*limits, "--entrypoint", "evenpace", _IMAGES[command], *options_in_force(), command, *line),
        ]
        with log.open("wb") as stream:
            popen = subprocess.Popen(
                docker_line,
                stdin=subprocess.DEVNULL,
                stdout=stream if command == "worker" else subprocess.PIPE,
                stderr=stream,
                start_new_session=True,
            )
        process = Process(name, popen, log)
        self.processes.append(process)
        return process

    def _address(self, process: Process) -> Address:
        read_address(process)  # it listens
        networks = docker(
            "inspect", "--format", "{{json .NetworkSettings.Networks}}", self._container(process.name)
        )
        return Address(json.loads(networks)[self._network]["IPAddress"], _PORT)

    def _container(self, name: str) -> str:
        return f"evenpace-{self._id}-{name}"


def require_engine() -> None:
    """Make sure that containers can be run.

    Raises:
        ContainerError: Says what is missing.
    """
    if shutil.which("docker") is None:
        raise ContainerError("there is no docker command; on Debian: apt-get install docker.io")
    docker("info", "--format", "{{.ID}}")
    there = docker("image", "ls", "--format", "{{.Repository}}").split()
    missing = [image for image in _IMAGES.values() if image not in there]
    if missing:
        raise ContainerError(f"no image {', '.join(missing)}: run make image-contention")


def docker(*arguments: str) -> str:
    """What a command of Docker's prints.

    Raises:
        ContainerError: It failed.
    """
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ContainerError(f"docker {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.strip()


def _named_files(arguments: Sequence[str]) -> list[Path]:
    """The files and folders that arguments name, by themselves or after a colon."""
    paths = [Path(argument.rpartition(":")[2]) for argument in arguments]
    return [path.resolve() for path in paths if path.is_absolute() and path.exists()]
