"""Cluster of an experiment in containers, one for each process, on a private network.

Driven through Docker's command line. The images are those of `docker/Dockerfile`; workers need the one with
stress-ng. They have no lab: it is mounted, as files are that the processes of an experiment would share,
under their own names.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evenpace.local.cluster import CpuShare, LocalCluster
from idl.errors import EvenpaceError
from rpc.address import Address
from rpc.logs import options_in_force

_IMAGES = {"manager": "evenpace-manager", "ps": "evenpace-ps", "worker": "evenpace-worker-contention"}
_LAB = Path(__file__).parents[1]
_MOUNTED_LAB = "/evenpace-lab/lab"
_PERIOD_US = 10_000  # of the CPU quota; the default of 100 ms would make short iterations pure noise


class ContainerError(EvenpaceError):
    """A command of the container engine failed; the message has its output."""


class ContainerCluster(LocalCluster):
    """`LocalCluster` each of whose processes runs in a container of its own, on a private network."""

    def __init__(self, folder: Path, **options: Any) -> None:
        super().__init__(folder, host="0.0.0.0", **options)
        self._network = f"evenpace-{self._id}"
        self._addresses: dict[str, Address] = {}

    def start(self) -> None:
        """Make the network, start the services, and wait until they listen."""
        require_engine()
        docker("network", "create", self._network)
        super().start()

    def stop(self) -> None:
        """End all processes, and remove containers and network."""
        super().stop()
        names = docker("ps", "--all", "--quiet", "--filter", f"network={self._network}").split()
        if names:
            docker("rm", "--force", *names)
        if self._network in docker("network", "ls", "--format", "{{.Name}}").split():
            docker("network", "rm", self._network)

    def address(self, service: str) -> Address:
        """Return where the other containers and this machine reach a service; waits until it listens."""
        if service not in self._addresses:
            port = super().address(service).port
            networks = docker(
                "inspect", "--format", "{{json .NetworkSettings.Networks}}", self.container(service)
            )
            host = json.loads(networks)[self._network]["IPAddress"]
            self._addresses[service] = Address(host, port)
        return self._addresses[service]

    def pid(self, name: str) -> int:
        """Return the id of a process, as this machine numbers it."""
        return int(docker("inspect", "--format", "{{.State.Pid}}", self.container(name)))

    def container(self, name: str) -> str:
        """Return the name of a process's container."""
        return f"evenpace-{self._id}-{name}"

    def _line(self, name: str, command: str, arguments: Sequence[str]) -> list[str]:
        folder = self.folder.resolve()
        others = [file for file in _named_files(arguments) if not file.is_relative_to(folder)]
        mounts = [
            f"{folder}:{folder}",
            *(f"{file}:{file}:ro" for file in others),
            f"{_LAB}:{_MOUNTED_LAB}:ro",
        ]
        return [
            *("docker", "run", "--rm", "--name", self.container(name), "--network", self._network),
            # The files that it writes into the run's folder are to belong to the user of the experiment.
            *("--user", f"{os.getuid()}:{os.getgid()}", "--env", "HOME=/tmp", "--workdir", str(folder)),
            *("--env", f"PYTHONPATH={Path(_MOUNTED_LAB).parent}"),
            *(word for mount in mounts for word in ("--volume", mount)),
            *(*self._quota(name), "--entrypoint", "evenpace", _IMAGES[command]),
            *(*options_in_force(), command, *arguments),
        ]

    def _limits(self, name: str) -> list[str]:
        return []  # the engine limits the container's CPU, from its start on

    def _quota(self, name: str) -> list[str]:
        share = self.shares.get(name, CpuShare())
        words = [] if share.cpu is None else ["--cpuset-cpus", str(share.cpu)]
        if share.cores is not None:
            words += ["--cpu-period", str(_PERIOD_US), "--cpu-quota", str(round(share.cores * _PERIOD_US))]
        return words


def require_engine() -> None:
    """Check that containers can be run (ContainerError: the engine is missing or does not answer)."""
    if shutil.which("docker") is None:
        raise ContainerError("there is no docker command; on Debian: apt-get install docker.io")
    docker("info", "--format", "{{.ID}}")
    there = docker("image", "ls", "--format", "{{.Repository}}").split()
    missing = [image for image in _IMAGES.values() if image not in there]
    if missing:
        raise ContainerError(f"no image {', '.join(missing)}: run make image-contention")


def docker(*arguments: str) -> str:
    """Run a command of Docker's, and return its output (ContainerError: the command failed)."""
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ContainerError(f"docker {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.strip()


def _named_files(arguments: Sequence[str]) -> list[Path]:
    """Return files and folders that arguments name, alone or after a colon; for a script, its folder."""
    paths = [Path(argument.rpartition(":")[2]) for argument in arguments]
    there = [path.resolve() for path in paths if path.is_absolute() and path.exists()]
    return list(dict.fromkeys(path.parent if path.suffix == ".py" else path for path in there))
