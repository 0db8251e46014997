"""A cluster on this machine: a manager, a parameter server's shards and workers, each a process.

Whatever happens to the process that started them, none of them stays behind.
"""

import os
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from evenpace.cpu_limits import LimitKind, remove_leftovers
from evenpace.processes import Process, command_line, end_process, read_address
from rpc.address import Address
from rpc.credentials import Credentials


@dataclass
class LocalCluster:
    """A context manager that starts processes and stops them all at its end.

    Args:
        folder: Where the processes' logs go.
        policy: The manager's.
        predictor: The manager's.
        tolerance: The manager's.
        workers: How many the job waits for.
        shards: Processes of the parameter server.
        deterministic: Whether gradients are summed in the order of their slices.
        report_timeout: Seconds; see `batchsize_manager.job.config.JobConfig`.
        sync: The manager's mode; see `idl.synchronisation.Synchronisation`.
        staleness: In the mode ssp; None for the manager's default.
        replicas_to_aggregate: In the mode backup.
        manager_options: More options of `evenpace manager`.
        host: The address of this machine that the services listen on.
        credentials: For all of them, if they are to speak TLS; the token is for the workers.
        token_key: For the services, if they are to ask for tokens.
        prefixes: By process name: a command to start it through, which becomes it, such as `nsenter`.
    """

    folder: Path
    policy: str = "proportional"
    predictor: str = "ema"
    tolerance: float = 0.02
    workers: int = 1
    shards: int = 1
    deterministic: bool = False
    report_timeout: float = 120.0
    sync: str = "bsp"
    staleness: int | None = None
    replicas_to_aggregate: int | None = None
    manager_options: Sequence[str] = ()
    host: str = "127.0.0.1"
    credentials: Credentials | None = None
    token_key: Path | None = None
    prefixes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    processes: list[Process] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._id = uuid.uuid4().hex[:8]

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def start(self) -> None:
        """Start the services, and wait until they listen."""
        self.folder.mkdir(parents=True, exist_ok=True)
        manager = self._start(
            "manager",
            "manager",
            *("--listen", f"{self.host}:0", "--workers", str(self.workers)),
            *("--policy", self.policy, "--predictor", self.predictor),
            *("--tolerance", str(self.tolerance)),
            *("--report-timeout", str(self.report_timeout)),
            *self._synchronisation(),
            *self._security(),
            *self.manager_options,
        )
        option = [*self._security(), *["--deterministic"] * self.deterministic]
        shards = [
            self._start(f"ps-{i}", "ps", "--listen", f"{self.host}:0", *option) for i in range(self.shards)
        ]
        self.manager = self._address(manager)
        self.shard_addresses = tuple(self._address(shard) for shard in shards)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start_worker(
        self,
        name: str,
        script: Path,
        arguments: Sequence[str] = (),
        cpu_share: float | None = None,
        limit_kind: LimitKind = "auto",
        options: Mapping[str, str] | None = None,
    ) -> Process:
        """Start a training script as a worker.

        Args:
            name: The worker's.
            script: The script.
            arguments: Its arguments.
            cpu_share: Cores that it may use from its first iteration on; None for no limit.
            limit_kind: See `evenpace.cpu_limits.limit_cpu`.
            options: More options of `evenpace worker`, by name.
        """
        flags = self._credentials(for_worker=True)
        for shard in self.shard_addresses:
            flags += ["--ps", str(shard)]
        if cpu_share is not None:
            flags += ["--cpu-share", str(cpu_share), "--limit-kind", limit_kind]
        for option, value in (options or {}).items():
            flags += [option, value]
        return self._start(
            name,
            "worker",
            *("--manager", str(self.manager), "--name", name, "--limit-name", f"{self._id}-{name}"),
            *flags,
            str(script),
            *arguments,
        )

    def check(self) -> bool:
        """Whether workers are still running.

        Raises:
            ProcessFailedError: A process failed, or a service ended.
        """
        running = False
        for process in self.processes:
            code = process.popen.poll()
            if code is None:
                running = running or not self._is_service(process)
            elif code or self._is_service(process):
                raise process.failure()
        return running

    def stop(self) -> None:
        """End all processes: politely first."""
        running = [p for p in self.processes if p.popen.poll() is None]
        # Workers first, so that they can still say goodbye to the services.
        for services in (False, True):
            for process in running:
                if self._is_service(process) == services:
                    end_process(process.popen)
        for process in self.processes:
            if process.popen.stdout is not None:
                process.popen.stdout.close()
        remove_leftovers(self._id)

    def _synchronisation(self) -> list[str]:
        """The manager's options for it."""
        options = ["--sync", self.sync]
        if self.staleness is not None:
            options += ["--staleness", str(self.staleness)]
        if self.replicas_to_aggregate is not None:
            options += ["--replicas-to-aggregate", str(self.replicas_to_aggregate)]
        return options

    def _security(self) -> list[str]:
        """The services' options for whom they talk to."""
        options = self._credentials()
        if self.token_key is not None:
            options += ["--token-key", str(self.token_key)]
        if not Address(self.host, 0).is_loopback and (self.credentials is None or self.token_key is None):
            options += ["--insecure"]  # a network within this machine, made for an experiment
        return options

    def _credentials(self, *, for_worker: bool = False) -> list[str]:
        files = self.credentials or Credentials()
        named = {"--ca": files.ca, "--certificate": files.certificate, "--key": files.key}
        if for_worker:
            named["--token-file"] = files.token
        return [word for name, file in named.items() if file is not None for word in (name, str(file))]

    def _address(self, process: Process) -> Address:
        """Where a service can be reached, once it listens."""
        return read_address(process)

    def _is_service(self, process: Process) -> bool:
        return process.name == "manager" or process.name.startswith("ps-")

    def _start(self, name: str, command: str, *arguments: str) -> Process:
        log = self.folder / f"{name}.log"
        line = [*self.prefixes.get(name, ()), *command_line(command, *arguments)]
        with log.open("wb") as stream:
            popen = subprocess.Popen(
                line,
                stdin=subprocess.DEVNULL,
                stdout=stream if command == "worker" else subprocess.PIPE,
                stderr=stream,
                # Ctrl-C in the terminal is for us: we stop the others, in order.
                start_new_session=True,
            )
        process = Process(name, popen, log)
        self.processes.append(process)
        return process


def pick_cpus(shares: Sequence[float]) -> list[int]:
    """A CPU for each worker, the largest share first, each on the CPU with the least to do.

    Left to the scheduler, two large shares meet on one CPU now and then, and for some iterations get less
    than they may use: noise that has nothing to do with how batches are split.
    """
    load = dict.fromkeys(sorted(os.sched_getaffinity(0)), 0.0)
    placed = [0] * len(shares)
    for worker in sorted(range(len(shares)), key=lambda i: -shares[i]):
        placed[worker] = min(load, key=lambda cpu: load[cpu])
        load[placed[worker]] += shares[worker]
    return placed
