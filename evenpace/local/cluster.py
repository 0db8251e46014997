"""A cluster on one machine: a manager, shards of a parameter server and workers, each a process of its own.

Whatever happens to the process that started them, none of them stays behind. This module must not know what
they are for.
"""

import contextlib
import os
import random
import socket
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from rpc.address import Address
from rpc.credentials import Credentials
from rpc.processes import Process, command_line, end_all
from worker.resources.cpu_limits import LimitKind, remove_leftovers

LOOPBACK = "127.0.0.1"
MANAGER = "manager"
_POLL_SECONDS = 0.2  # seconds between two looks at the processes
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


@dataclass(frozen=True)
class Surroundings:
    """Surroundings in which a process of a cluster is started."""

    prefix: Sequence[str] = ()  # command to start it through, which becomes it, such as `nsenter`
    # Program that runs the command line, as `rpc.processes.command_line` takes it.
    program: Sequence[str] = ("evenpace",)
    environment: Mapping[str, str] = field(default_factory=dict)  # variables added to those of this process


@dataclass(frozen=True)
class CpuShare:
    """Share of this machine's CPUs that a worker may use."""

    cores: float | None = None  # cores that it may use from its first iteration on; None for no limit
    cpu: int | None = None  # CPU to which it is bound; None for any
    kind: LimitKind = "auto"  # kind of the limit, as `worker.resources.cpu_limits.limit_cpu` takes it


class LocalCluster:
    """Context manager that starts a manager and shards, then workers on request, and stops all at its end.

    Args:
        shards: Number of processes of the parameter server.
        host: Address of this machine on which the services listen.
        credentials: Credentials of all processes, if they are to speak TLS; the token is for the workers.
        token_key: File of the services' keys, if they are to ask for tokens.
        manager_options: More options of `evenpace manager`.
        shard_options: More options of `evenpace ps`, by the shard's name.
        worker_options: More options of `evenpace worker`, for all workers.
        surroundings: Surroundings of each process, by its name.
        ports: Ports on which the services listen, the manager first; none for free ones. With them, an
            address is known before its service listens, and stays the same when the service starts again.
        way: Function that returns where a worker reaches a service that listens on an address, by a link such
            as "w0>ps-1"; by default, at that address.
        manager: Options of `evenpace manager` by name, such as `policy="even"`; None for the default.

    Attributes:
        manager: Address of the manager.
        shard_addresses: Addresses of the shards, in order.
    """

    def __init__(
        self,
        folder: Path,
        *,
        workers: int = 1,
        shards: int = 1,
        host: str = LOOPBACK,
        credentials: Credentials | None = None,
        token_key: Path | None = None,
        manager_options: Sequence[str] = (),
        shard_options: Callable[[str], Sequence[str]] = lambda name: (),
        worker_options: Sequence[str] = (),
        surroundings: Callable[[str], Surroundings] = lambda name: Surroundings(),
        ports: Sequence[int] = (),
        way: Callable[[str, Address], Address] = lambda link, address: address,
        **manager: object,
    ) -> None:
        self.folder = folder
        self.workers = workers
        self.shards = [f"ps-{number}" for number in range(shards)]
        self.processes: list[Process] = []  # processes by name, in the order of their starts
        self.shares: dict[str, CpuShare] = {}  # CPU shares of the workers, by name
        self._id = uuid.uuid4().hex[:8]
        self.host = host  # address of this machine on which the services listen
        self._credentials = credentials or Credentials()
        self._token_key = token_key
        named = {name.replace("_", "-"): value for name, value in manager.items() if value is not None}
        options = [word for name, value in named.items() for word in (f"--{name}", str(value))]
        self._manager_options = ["--workers", str(workers), *options, *manager_options]
        self._shard_options = shard_options
        self._worker_options = worker_options
        self._surroundings = surroundings
        self._ports = dict(zip([MANAGER, *self.shards], ports, strict=False))
        self._way = way

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def services(self) -> list[str]:
        """Return the names of the services, the manager first."""
        return [MANAGER, *self.shards]

    @property
    def manager(self) -> Address:
        """Return the address on which the manager listens."""
        return self.address(MANAGER)

    @property
    def shard_addresses(self) -> tuple[Address, ...]:
        """Return the addresses on which the shards listen, in order."""
        return tuple(map(self.address, self.shards))

    def __getitem__(self, name: str) -> Process:
        """Return the process of a name."""
        return next(process for process in self.processes if process.name == name)

    def address(self, service: str) -> Address:
        """Return where a service listens, past any proxy; wait until it does, unless its port was given."""
        port = self._ports.get(service)
        return self[service].address if port is None else Address(self.host, port)

    def prepare(self) -> None:
        """Set up the services, and start none."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in self.services:
            is_manager = name == MANAGER
            more = self._manager_options if is_manager else self._shard_options(name)
            listen = f"{self.host}:{self._ports.get(name, 0)}"
            command = "manager" if is_manager else "ps"
            self._add(name, command, ["--listen", listen, *self._security(), *more])

    def start(self) -> None:
        """Start the services, and wait until they listen."""
        self.prepare()
        for process in self.processes:
            process.start()
        for name in self.services:
            self.address(name)

    def add_worker(
        self,
        name: str,
        script: str | Path,
        arguments: Sequence[str] | Callable[[int], Sequence[str]] = (),
        options: Mapping[str, str] | None = None,
        share: CpuShare | None = None,
    ) -> Process:
        """Set up a training script as a worker, without starting it.

        Args:
            arguments: Its arguments, or a function that returns them for the number of starts before.
            options: More options of `evenpace worker`, by name.
            share: CPU share of the worker; None for no limit.
        """
        reached = {one: str(self._way(f"{name}>{one}", self.address(one))) for one in self.services}
        line = ["--manager", reached[MANAGER], "--name", name, *self._security(for_worker=True)]
        for shard in self.shards:
            line += ["--ps", reached[shard]]
        line += self._worker_options
        for option, value in (options or {}).items():
            line += [option, value]
        line.append(str(script))
        if share is not None:
            self.shares[name] = share
        if callable(arguments):
            return self._add(name, "worker", lambda starts: [*line, *arguments(starts)])
        return self._add(name, "worker", [*line, *arguments])

    def start_worker(
        self,
        name: str,
        script: str | Path,
        arguments: Sequence[str] = (),
        options: Mapping[str, str] | None = None,
        share: CpuShare | None = None,
    ) -> Process:
        """Start a training script as a worker, with the arguments of `add_worker`."""
        process = self.add_worker(name, script, arguments, options, share)
        process.start()
        return process

    def start_other(self, name: str, command: Sequence[str]) -> Process:
        """Start a process of any other kind, which is watched and stopped like a worker."""
        process = Process(name, command, self.folder / f"{name}.log")
        self.processes.append(process)
        process.start()
        return process

    def pid(self, name: str) -> int:
        """Return the id of a process, as this machine numbers it."""
        return self[name].pid

    def limit_name(self, worker: str) -> str:
        """Return the name of a worker's CPU limit; what is left of it is removed with the cluster."""
        return f"{self._id}-{worker}"

    def check(self, gone: Collection[str] = ()) -> bool:
        """Return whether workers are still running.

        Args:
            gone: Names of workers that may have ended in any way.

        Raises:
            ProcessFailedError: Another process failed, or a service ended.
        """
        # What fails after this line is seen by the next call.
        running = any(
            process.is_running
            for process in self.processes
            if process.role == "worker" and process.name not in gone
        )
        if (failed := self.failed(gone)) is not None:
            raise failed.failure()
        return running

    def failed(self, gone: Collection[str] = ()) -> Process | None:
        """Return a worker that has failed, or a service that has ended; None without any.

        Args:
            gone: Names of workers that may have ended in any way.
        """
        for process in self.processes:
            if process.name in gone or process.is_running:
                continue
            if process.role != "worker" or (process.popen is not None and process.popen.returncode):
                return process
        return None

    def wait(self) -> None:
        """Wait until all workers have ended well.

        Raises:
            ProcessFailedError: A process failed, or a service ended.
        """
        while self.check():
            time.sleep(_POLL_SECONDS)

    def stop(self) -> None:
        """End all processes, by SIGTERM first; workers before services, so that they can leave the job."""
        workers = [process for process in self.processes if process.role == "worker"]
        try:
            end_all(workers)
        finally:
            end_all([process for process in self.processes if process not in workers])
            remove_leftovers(self._id)

    def _add(
        self, name: str, command: str, arguments: Sequence[str] | Callable[[int], Sequence[str]]
    ) -> Process:
        """Set a process of ours up, whose arguments may depend on how often it was started before."""

        def line(starts: int) -> list[str]:
            return self._line(name, command, arguments(starts) if callable(arguments) else arguments)

        role = {"manager": "manager", "ps": "shard"}.get(command, "worker")
        log = self.folder / f"{name}.log"
        listens = role != "worker" and name not in self._ports
        process = Process(name, line, log, role, self._surroundings(name).environment, listens)
        self.processes.append(process)
        return process

    def _line(self, name: str, command: str, arguments: Sequence[str]) -> list[str]:
        """Return the command line that runs a command of ours as the process of a name."""
        around = self._surroundings(name)
        limits = self._limits(name)
        return [*around.prefix, *command_line(command, *limits, *arguments, program=around.program)]

    def _limits(self, name: str) -> list[str]:
        """Return options of `evenpace worker` for what a worker may use of the CPUs; none for services."""
        share = self.shares.get(name, CpuShare())
        options = [] if share.cpu is None else ["--cpu", str(share.cpu)]
        if share.cores is not None:
            options += ["--cpu-share", str(share.cores), "--limit-kind", share.kind]
            options += ["--limit-name", self.limit_name(name)]
        return options

    def _security(self, *, for_worker: bool = False) -> list[str]:
        """Return the options of certificates and tokens of a process."""
        files = self._credentials
        named = {"--ca": files.ca, "--certificate": files.certificate, "--key": files.key}
        named |= {"--token-file": files.token} if for_worker else {"--token-key": self._token_key}
        options = [word for name, file in named.items() if file is not None for word in (name, str(file))]
        open_to_all = files.ca is None or self._token_key is None
        if not for_worker and not Address(self.host, 0).is_loopback and open_to_all:
            options += ["--insecure"]  # a network within this machine, made for an experiment
        return options


@contextlib.contextmanager
def service(
    *arguments: str,
    module: str | None = None,
    host: str = LOOPBACK,
    prefix: Sequence[str] = (),
    log: Path | None = None,
) -> Iterator[Process]:
    """Run a single service on a free port, from when it listens until the end of `with`.

    Args:
        arguments: Arguments of `evenpace` without `--listen`, such as "manager", "--workers", "3"; or of the
            module.
        module: Another module to run, which listens on a free port of loopback.
        host: Address of this machine on which it listens.
        prefix: Command to start it through, which becomes it, such as `nsenter`.
        log: File for its log; None for a file that is removed with it.

    Raises:
        UnavailableError: The service does not listen in time.
        ProcessFailedError: The service failed.
    """
    if module is not None:
        line = [sys.executable, "-m", module, *arguments]
    else:
        command, *rest = arguments
        line = command_line(command, "--listen", f"{host}:0", *rest)
    with tempfile.TemporaryDirectory(prefix="evenpace-service-") as folder:
        name = module or arguments[0]
        process = Process(name, [*prefix, *line], log or Path(folder) / "log", listens=True)
        with process:
            process.address  # noqa: B018 - waits for it
            yield process


def free_ports(count: int) -> list[int]:
    """Return free TCP ports, which services can use for every start.

    The kernel must not give them to anybody's outgoing connection while a service is away; nor may another
    run choose them that begins at the same time.
    """
    draw = random.Random()
    first = int(_EPHEMERAL.read_text().split()[0])
    free: list[int] = []
    while len(free) < count:
        port = draw.randrange(10_000, max(first, 10_100))
        with socket.socket() as probe:
            try:
                probe.bind((LOOPBACK, port))
            except OSError:
                continue
        if port not in free:
            free.append(port)
    return free


def share_cpus(cores: Sequence[float], kind: LimitKind) -> list[CpuShare]:
    """Bind each worker's cores to one CPU: the largest share first, each to the CPU with the least load.

    Left to the scheduler, two large shares meet on one CPU now and then, and for some iterations get less
    than they may use: noise that has nothing to do with how batches are split.
    """
    load = dict.fromkeys(sorted(os.sched_getaffinity(0)), 0.0)
    placed = [0] * len(cores)
    for worker in sorted(range(len(cores)), key=lambda i: -cores[i]):
        placed[worker] = min(load, key=lambda cpu: load[cpu])
        load[placed[worker]] += cores[worker]
    return [CpuShare(share, cpu, kind) for share, cpu in zip(cores, placed, strict=True)]
