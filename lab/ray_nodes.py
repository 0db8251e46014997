"""Nodes of a Ray cluster on this machine, each a tree of processes that can be frozen and killed as one.

They share the machine's address, and else nothing: to Ray they are different machines.
"""

import contextlib
import itertools
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import psutil

from evenpace.local.cluster import free_ports
from idl.errors import UnavailableError
from rpc.processes import Process
from rpc.tokens import write_secret
from worker.resources.cpu_limits import CpuLimit, limit_cpu

_OBJECT_STORE = 80 * 2**20  # bytes; the least that Ray takes
_START_SECONDS = 180.0
_POLL_SECONDS = 0.1
_STARTED = "Ray runtime started"  # in a node's log
_ID = "--node_id="  # in the command line of Ray's own process
_CHECKS = 3  # that a node may miss
_SILENCE = 3.0  # seconds


_DRAIN = """
import sys

from ray._raylet import GcsClient
from ray.core.generated.autoscaler_pb2 import DRAIN_NODE_REASON_PREEMPTION

address, node, end = sys.argv[1:]
accepted, why = GcsClient(address).drain_node(node, DRAIN_NODE_REASON_PREEMPTION, "spot notice", int(end))
sys.exit(None if accepted else why)
"""
"""Tells a cluster that a node goes; the end is in milliseconds since 1970."""


class RayNode:
    """A node, which runs from the beginning to the end of `with`.

    Args:
        folder: Folder of its log; for a head, also the home of the cluster's processes, in which Ray keeps
            the cluster's token.
        silence: Seconds of silence after which a head gives up a node; None for Ray's own, some 13 s.
        cores: Cores that Ray and all actors on it may use; None for all.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        head: "RayNode | None" = None,
        *,
        cpus: int = 1,
        resources: Mapping[str, float] | None = None,
        environment: Mapping[str, str] | None = None,
        silence: float | None = _SILENCE,
        cores: float | None = None,
    ) -> None:
        if head is None:
            port, client_port = free_ports(2)
            self.address = f"127.0.0.1:{port}"
            self.environment: Mapping[str, str] = {
                "HOME": str(folder),
                "RAY_AUTH_MODE": "token",
                **(environment or {}),
            }
            place = ["--head", "--node-ip-address", "127.0.0.1", "--port", str(port)]
            place += ["--ray-client-server-port", str(client_port), "--include-dashboard", "false"]
            if silence is not None:
                place += ["--system-config", json.dumps(_health_checks(silence))]
        else:
            self.address, self.environment = head.address, head.environment
            place = ["--address", head.address, "--node-ip-address", "127.0.0.1"]
        own = ["--num-cpus", str(cpus), "--object-store-memory", str(_OBJECT_STORE)]
        own += ["--resources", json.dumps(dict(resources or {})), "--disable-usage-stats", "--block"]
        own += ["--min-worker-port", "0", "--max-worker-port", "0"]  # any that are free
        line = [sys.executable, "-m", "ray.scripts.scripts", "start", *place, *own]
        self.name = name
        self._is_head = head is None
        self._folder = folder
        self._process = Process(name, line, folder / f"{name}.log", environment=self.environment)
        self._tree: list[psutil.Process] = []  # as it was frozen
        self._cores = cores
        self._limit: CpuLimit | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    @property
    def processes(self) -> list[psutil.Process]:
        """Return all its processes, Ray's and those of actors."""
        if not self._process.is_running:
            return []
        parent = psutil.Process(self._process.pid)
        return [parent, *parent.children(recursive=True)]

    @property
    def id(self) -> str:
        """Return Ray's id of the node (UnavailableError: it does not run)."""
        words = itertools.chain.from_iterable(map(_command_line, self.processes))
        ids = (word.removeprefix(_ID) for word in words if word.startswith(_ID))
        if (found := next(ids, None)) is None:
            raise UnavailableError(f"{self._process.name} does not run")
        return found

    def start(self) -> None:
        """Start it, and wait until it is part of the cluster."""
        if self._is_head:
            token = self._folder / ".ray" / "auth_token"
            token.parent.mkdir(parents=True, exist_ok=True)
            write_secret(token, secrets.token_hex(32))
        self._process.start()
        deadline = time.monotonic() + _START_SECONDS
        while _STARTED not in self._process.log.read_text():
            if not self._process.is_running:
                raise self._process.failure()
            if time.monotonic() > deadline:
                raise UnavailableError(f"{self._process.name} did not start within {_START_SECONDS:g} s")
            time.sleep(_POLL_SECONDS)
        if self._cores is not None:
            (raylet,) = [one for one in self.processes if one.name() == "raylet"]  # which starts all actors
            self._limit = limit_cpu(raylet.pid, self._cores, self.name)

    def announce_end(self, seconds: float) -> None:
        """Tell Ray that the node is about to go, as the notice for a spot machine does."""
        # `ray drain-node` counts the seconds from when it has started, which takes some.
        end = round(1000 * (time.time() + seconds))
        line = [sys.executable, "-c", _DRAIN, self.address, self.id, str(end)]
        done = subprocess.run(
            line, env={**os.environ, **self.environment}, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise UnavailableError(f"{self._process.name} cannot be drained: {done.stderr or done.stdout}")

    def freeze(self) -> None:
        """Freeze all its processes."""
        self._tree = self.processes
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let its processes go on."""
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill all its processes at once, as the loss of a machine does."""
        self._tree = [*{*self._tree, *self.processes}]
        self._signal(signal.SIGKILL)
        psutil.wait_procs(self._tree)
        self._tree = []
        self._process.end()
        if self._limit is not None:
            self._limit.close()

    def _signal(self, number: int) -> None:
        for process in self._tree:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)


def job_processes(environment: Mapping[str, str], job: str, name: str | None = None) -> list[psutil.Process]:
    """Return the processes of a job that run on this machine, those that Ray's actors have started.

    Args:
        environment: Variables of the cluster's processes, which tell it from other clusters.
        name: That of one process of it, such as "manager", "ps-0" or "w0"; None for all.
    """
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        if "submit" in line or not _is_of(line, job) or not (name is None or _is(line, name)):
            continue
        with contextlib.suppress(psutil.Error):
            if environment.items() <= process.environ().items():
                found.append(process)
    return found


def _is_of(line: Sequence[str], job: str) -> bool:
    return f"/{job}/" in " ".join(line) or _value(line, "--job") == job


def _is(line: Sequence[str], name: str) -> bool:
    if name == "manager":
        return "manager" in line
    if name.startswith("ps-"):
        return "ps" in line and _value(line, "--state").endswith(f"/{name}")
    return "worker" in line and _value(line, "--name") == name


def _value(line: Sequence[str], option: str) -> str:
    return line[line.index(option) + 1] if option in line else ""


def _health_checks(silence: float) -> Mapping[str, int]:
    """Return Ray's settings with which it gives up a node after `silence` seconds."""
    period = max(1, round(1000 * silence / _CHECKS))
    return {
        "health_check_initial_delay_ms": period,
        "health_check_period_ms": period,
        "health_check_timeout_ms": period,
        "health_check_failure_threshold": _CHECKS,
    }


def _command_line(process: psutil.Process) -> list[str]:
    """Return the words of a process's command; none where it has ended meanwhile."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []
