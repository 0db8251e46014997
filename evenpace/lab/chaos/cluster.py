"""The cluster that faults befall: a manager, shards and workers, with a proxy between them, in one folder."""

import random
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from evenpace.lab.chaos import clocks, disks, train_worker
from evenpace.lab.chaos.disks import Disk
from evenpace.lab.chaos.errors import NotPossibleHereError
from evenpace.lab.chaos.processes import Supervised, Supervisor, free_ports
from evenpace.lab.chaos.schedule import KINDS, MANAGER, Sites
from evenpace.lab.chaos.settings import Settings
from evenpace.lab.proxy import Proxy
from evenpace.overview.client import ManagerClient
from evenpace.processes import command_line
from idl.errors import EvenpaceError
from rpc.address import Address

_STATUS_SECONDS = 1.0  # for the manager to say who is out, and until it is asked again


class Cluster:
    """A context manager that makes the cluster, and leaves no process and no mount behind.

    A kind of fault that cannot be brought about here is left out. Where the settings name it, it is a
    NotPossibleHereError.

    Args:
        settings: Of the run.
        folder: Empty; everything is written within it.

    Attributes:
        supervisor: Of the processes, which it has yet to start.
        proxy: With a link for each worker and service, such as "w0>ps-1".
        disks: Small file systems for state, by service; empty where they cannot be made.
        kinds: Of faults, those that come.
        skipped: Why others cannot, by kind.
        manager: Where it really listens.
    """

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings = settings
        self.folder = folder
        self.proxy = Proxy(settings.link_mib * 2**20)
        self.disks: dict[str, Disk] = {}
        self.skipped: dict[str, str] = {}
        self._library: Path | None = None
        self._asked: dict[str, float] = {}  # when the manager was asked about a worker
        ports = free_ports(1 + settings.shards)
        self.addresses = {
            name: Address("127.0.0.1", port)
            for name, port in zip([MANAGER, *self.shards], ports, strict=True)
        }
        self.supervisor = Supervisor({}, random.Random(settings.seed))

    @property
    def shards(self) -> list[str]:
        """Their names, in order."""
        return [f"ps-{number}" for number in range(self.settings.shards)]

    @property
    def workers(self) -> list[str]:
        """Their names, in order."""
        return [name for names in self.jobs.values() for name in names]

    @property
    def jobs(self) -> dict[str, list[str]]:
        """The names of each job's workers."""
        size = self.settings.workers
        return {
            f"job-{job}": [f"w{number}" for number in range(job * size, (job + 1) * size)]
            for job in range(self.settings.jobs)
        }

    @property
    def manager(self) -> Address:
        """Where the manager listens, past the proxy."""
        return self.addresses[MANAGER]

    @property
    def kinds(self) -> list[str]:
        """The kinds of faults that come."""
        return [kind for kind in self.settings.wanted if kind not in self.skipped]

    @property
    def sites(self) -> Sites:
        """What faults may befall."""
        if self.settings.deterministic:
            links = tuple(link for link in self.proxy.links if not link.endswith(MANAGER))
            return Sites({"manager": (MANAGER,)}, links, tuple({MANAGER} & set(self.disks)))
        return Sites(
            {"worker": tuple(self.workers), "shard": tuple(self.shards), "manager": (MANAGER,)},
            tuple(self.proxy.links),
            tuple(self.disks),
        )

    def __enter__(self) -> Self:
        for name in ("state", "ledgers", "journals", "parameters", "temporary"):
            (self.folder / name).mkdir()
        self._try("disk", self._make_disks)
        self._try("clock", self._find_clock)
        self.proxy.__enter__()
        for worker in self.workers:
            for service, address in self.addresses.items():
                self.proxy.add(f"{worker}>{service}", address)
        processes = [
            self._manager(),
            *map(self._shard, self.shards),
            *(self._worker(name, job) for job, names in self.jobs.items() for name in names),
        ]
        self.supervisor.processes = {process.name: process for process in processes}
        for process in processes:
            process.wanted = process.role != "worker"  # until the services listen
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for role in ("worker", "shard", "manager"):
            self.supervisor.stop(role)
        self.proxy.__exit__(kind, error, trace)
        for disk in self.disks.values():
            disks.unmount(disk)

    def listening(self, *services: str) -> bool:
        """Whether services, or all, can be connected to."""
        for service in services or self.addresses:
            try:
                socket.create_connection(self.addresses[service], timeout=1.0).close()
            except OSError:
                return False
        return True

    def trains(self, process: Supervised) -> bool:
        """Whether a worker has come to train since its last start."""
        journal = self.folder / "journals" / f"{process.name}-{process.starts - 1}.jsonl"
        return journal.exists() and journal.stat().st_size > 0

    def standing(self, worker: str) -> str | None:
        """How a worker stands, as the manager has it; None if it does not answer, or was asked just now.

        See `MemberStatus` in the IDL; "no member" is another one.
        """
        if time.monotonic() < self._asked.get(worker, 0.0) + _STATUS_SECONDS:
            return None
        job = next(job for job, workers in self.jobs.items() if worker in workers)
        try:
            with ManagerClient(self.manager, timeout=_STATUS_SECONDS) as manager:
                members: dict[str, str] = {m.worker: m.state for m in manager.status(job).members}
        except EvenpaceError:
            return None
        finally:
            self._asked[worker] = time.monotonic()
        return members.get(worker, "no member")

    def stop_file(self, job: str) -> Path:
        """The file that will have a job's last iteration."""
        return self.folder / f"{job}.stop"

    def start_workers(self) -> None:
        """Have the workers started, and started again."""
        for process in self.supervisor.processes.values():
            process.wanted = True

    def journals(self, worker: str) -> list[Path]:
        """A worker's, one for each start, in order."""
        starts = self.supervisor.processes[worker].starts
        paths = [self.folder / "journals" / f"{worker}-{start}.jsonl" for start in range(starts)]
        return [path for path in paths if path.exists()]

    def ledgers(self, shard: str, job: str) -> list[Path]:
        """A shard's file of a job, if there is one yet."""
        return sorted((self.folder / "ledgers" / shard).glob(f"{job}_*"))

    def _try(self, site: str, prepare: Callable[[], None]) -> None:
        kinds = [kind for kind in self.settings.wanted if KINDS[kind].site == site]
        if not kinds:
            return
        try:
            prepare()
        except NotPossibleHereError as error:
            if self.settings.kinds is not None:
                raise NotPossibleHereError(f"faults {', '.join(kinds)}: {error}") from error
            self.skipped |= dict.fromkeys(kinds, str(error))

    def _make_disks(self) -> None:
        disks.private_mounts()
        for name in self.addresses:
            self.disks[name] = disks.make_disk(name, self.folder / "state" / name)

    def _find_clock(self) -> None:
        self._library = clocks.find_library()

    def _manager(self) -> Supervised:
        return self._service(
            MANAGER,
            "manager",
            *("manager", "--listen", str(self.manager), "--workers", str(self.settings.workers)),
            *("--lookahead", str(self.settings.lookahead)),
            *(("--policy", "even") if self.settings.deterministic else ()),
            *("--state", str(self.folder / "state" / MANAGER)),
        )

    def _shard(self, name: str) -> Supervised:
        return self._service(
            name,
            "shard",
            *("ps", "--listen", str(self.addresses[name])),
            *("--state", str(self.folder / "state" / name)),
            *("--checkpoint-every", str(self.settings.checkpoint_every)),
            *("--ledger", str(self.folder / "ledgers" / name)),
            *(("--deterministic",) if self.settings.deterministic else ()),
        )

    def _service(self, name: str, role: str, *arguments: str) -> Supervised:
        return self._supervised(name, role, lambda starts: arguments)

    def _worker(self, name: str, job: str) -> Supervised:
        links = {service: str(self.proxy.links[f"{name}>{service}"].address) for service in self.addresses}
        shards = [option for shard in self.shards for option in ("--ps", links[shard])]

        def arguments(starts: int) -> Sequence[str]:
            return (
                *("worker", "--manager", links[MANAGER], *shards, "--job", job, "--name", name),
                train_worker.__file__,
                *("--journal", str(self.folder / "journals" / f"{name}-{starts}.jsonl")),
                *(
                    "--stop",
                    str(self.stop_file(job)),
                    "--out",
                    str(self.folder / "parameters" / f"{name}.npz"),
                ),
                *("--pause", str(self.settings.pause)),
            )

        return self._supervised(name, "worker", arguments)

    def _supervised(self, name: str, role: str, arguments: Callable[[int], Sequence[str]]) -> Supervised:
        log = self.folder / f"{name}.log"
        environment = {
            "TMPDIR": str(self.folder / "temporary"),
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        if self._library is not None:
            offset = log.with_suffix(".offset")
            clocks.set_offset(offset, 0.0)
            environment |= clocks.environment(self._library, offset)

        def command(starts: int) -> Sequence[str]:
            witness = ("evenpace.lab.chaos.witness", str(log.with_suffix(".clock")))
            return command_line(*arguments(starts), program=witness)

        return Supervised(name, role, command, environment, log)
