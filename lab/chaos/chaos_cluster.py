"""Cluster for faults: a manager, shards and workers, with a proxy between them, in one folder."""

import contextlib
import os
import random
import socket
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Self

from batchsize_manager.client import ManagerClient
from batchsize_manager.sizers import MEASURING
from evenpace.local.cluster import LocalCluster, Surroundings, free_ports
from idl.bounds import Bounds
from idl.errors import EvenpaceError
from lab.chaos import clocks, damage, disks, journalling_worker
from lab.chaos.config import ChaosConfig
from lab.chaos.damage import SparedCopy
from lab.chaos.disks import Disk
from lab.chaos.errors import NotPossibleHereError
from lab.chaos.failing_writes import FailingWrites, make_library
from lab.chaos.fault_schedule import KINDS, MANAGER, Sites
from lab.chaos.ledgers import parse
from lab.chaos.rank_links import Ear
from lab.chaos.reference_training import LEAST, MICRO_BATCH, MOST, ORDERED, SIMILARITY
from lab.chaos.supervisor import Supervisor
from lab.network import NetworkError, WorkerNetwork
from lab.proxy import Proxy
from lab.script_options import as_argument
from rpc.address import Address
from rpc.processes import Process

_GUESTS = 2
_LAST_BYTES = 4096  # of a journal, in which there is a whole line
_STATUS_SECONDS = 1.0  # seconds for the manager to answer about a worker, and until it is asked again


class ChaosCluster:
    """Context manager that makes the cluster, and leaves no process and no mount behind.

    A kind of fault that cannot be caused on this machine is left out, or raises NotPossibleHereError if the
    settings name it.
    """

    def __init__(self, settings: ChaosConfig, folder: Path) -> None:
        self.settings = settings
        self.folder = folder
        # Proxy with a link for each worker and service, such as "w0>ps-1".
        self.proxy = Proxy(settings.link_mib * 2**20)
        # Small file systems for state, by service; empty where they cannot be made.
        self.disks: dict[str, Disk] = {}
        # Switches for the writes to state, by service; empty where they cannot be made to fail.
        self.writes: dict[str, FailingWrites] = {}
        self.skipped: dict[str, str] = {}  # reasons why other kinds cannot be caused, by kind
        # What can keep workers from hearing each other, by worker; empty where that cannot be.
        self.ears: dict[str, Ear] = {}
        self._prefixes: dict[str, Sequence[str]] = {}  # by worker, of commands in its network namespace
        self._library: Path | None = None
        self._ending = contextlib.ExitStack()  # what is left when the processes have ended
        self._asked: dict[tuple[str, str], float] = {}  # when the manager was asked what, of which worker
        self._all_reduce = settings.exchange == "all-reduce"
        # Names of workers beyond the job's, which are there now and then.
        self.guests = [f"guest{number}" for number in range(_GUESTS if "join" in settings.wanted else 0)]
        shards = 0 if self._all_reduce else settings.shards
        self._local = LocalCluster(
            folder,
            workers=settings.workers,
            shards=shards,
            manager_options=(
                *(("--exact",) if settings.exact else ()),
                *(("--scale-batch",) if settings.scale_batch else ()),
            ),
            shard_options=self._shard_options,
            surroundings=self._surroundings,
            ports=free_ports(1 + shards),
            way=self.proxy.add,
            lookahead=settings.lookahead,
            policy="even" if settings.deterministic else None,
            state=self.state(MANAGER),
            sizer=settings.sizer,
            batch_size=f"{LEAST}:{MOST}" if settings.sizer in MEASURING else None,
            similarity=SIMILARITY if settings.sizer in MEASURING else None,
        )
        # Supervisor of the processes, which it has yet to start.
        self.supervisor = Supervisor({}, random.Random(settings.seed))

    @property
    def addresses(self) -> dict[str, Address]:
        """Return the addresses on which the services listen, past the proxy."""
        return {name: self._local.address(name) for name in self._local.services}

    @property
    def shards(self) -> list[str]:
        """Return the shards' names, in order."""
        return self._local.shards

    @property
    def workers(self) -> list[str]:
        """Return the workers' names, in order."""
        return [name for names in self.jobs.values() for name in names]

    @property
    def jobs(self) -> dict[str, list[str]]:
        """Return the names of each job's workers."""
        size = self.settings.workers
        return {
            f"job-{job}": [f"w{number}" for number in range(job * size, (job + 1) * size)]
            for job in range(self.settings.jobs)
        }

    @property
    def manager(self) -> Address:
        """Return the address on which the manager listens, past the proxy."""
        return self.addresses[MANAGER]

    @property
    def kinds(self) -> list[str]:
        """Return the kinds of faults that come."""
        return [kind for kind in self.settings.wanted if kind not in self.skipped]

    @property
    def sites(self) -> Sites:
        """Return the processes, links, disks and clocks that faults may befall."""
        if self.settings.deterministic:
            links = tuple(link for link in self.proxy.links if not link.endswith(MANAGER))
            disks, writes = (tuple({MANAGER} & set(own)) for own in (self.disks, self.writes))
            return Sites({"manager": (MANAGER,)}, links, disks, writes=writes)
        return Sites(
            {
                "worker": tuple(self.workers),
                **({"shard": tuple(self.shards)} if self.shards else {}),
                "manager": (MANAGER,),
            },
            tuple(self.proxy.links),
            tuple(self.disks),
            tuple(self.guests),
            tuple(self.writes),
        )

    def __enter__(self) -> Self:
        for name in ("state", "ledgers", "journals", "parameters", "temporary"):
            (self.folder / name).mkdir()
        with self._ending:
            self._try("ranks", self._make_network)  # which must not be among the mounts of the next
            self._try("disk", self._make_disks)
            self._try("writes", self._make_failing_writes)
            self._try("clock", self._find_clock)
            self._ending.enter_context(self.proxy)
            self._ending = self._ending.pop_all()
        self._local.prepare()
        script = Path(journalling_worker.__file__)
        if self._all_reduce:
            script = script.with_name("all_reduce_worker.py")
        for job, names in self.jobs.items():
            for name in (*names, *self.guests):
                arguments = partial(self._worker_arguments, job, name)
                self._local.add_worker(name, script, arguments, {"--job": job})
        self.supervisor.processes = {process.name: process for process in self._local.processes}
        self.supervisor.wanted = set(self.addresses)  # the workers come when these listen
        if self._library is not None:
            for process in self._local.processes:
                clocks.set_offset(process.log.with_suffix(".offset"), 0.0)
        return self

    def __exit__(self, *error: object) -> None:
        for role in ("worker", "shard", "manager"):
            self.supervisor.stop(role)
        self._ending.close()

    def listening(self, *services: str) -> bool:
        """Return whether services, by default all, can be connected to."""
        for service in services or self.addresses:
            try:
                socket.create_connection(self.addresses[service], timeout=1.0).close()
            except OSError:
                return False
        return True

    def trains(self, process: Process) -> bool:
        """Return whether a worker has trained since its last start."""
        journal = self._journal(process.name, process.starts - 1)
        return journal.exists() and journal.stat().st_size > 0

    def member_state(self, worker: str) -> str | None:
        """Return a worker's state as the manager has it; None if it does not answer, or was asked just now.

        It is that of `MemberStatus` in the IDL, or "no member".
        """

        def ask(manager: ManagerClient, job: str) -> str:
            members: dict[str, str] = {m.worker: m.state for m in manager.status(job).members}
            return members.get(worker, "no member")

        return self._ask("state", worker, ask)

    def drain(self, worker: str) -> None:
        """Ask the manager to drain a worker, unless that was done just now."""
        self._ask("drain", worker, lambda manager, job: manager.drain(job, worker))

    def order_batch_size(self, worker: str, samples: int) -> str | None:
        """Ask for batches of another size in a worker's job; return the manager's answer, if there is one."""
        return self._ask(
            "batch size", worker, lambda manager, job: manager.set_total_batch_size(job, samples)
        )

    def order_bounds(self, worker: str, bounds: Bounds) -> str | None:
        """Ask for other bounds of a worker's batch size; return the manager's answer, if there is one."""
        what = f"bounds from {bounds.minimum} to {bounds.maximum}"
        return self._ask(what, worker, lambda manager, job: manager.set_bounds(job, worker, bounds))

    def drawn_bounds(self, amount: float) -> Bounds:
        """Return bounds of a worker's batch size, by a number from 0 to 1, that all workers could have."""
        workers = self.settings.workers
        most = MOST if self.settings.sizer in MEASURING else ORDERED
        least = max(1, int(amount * LEAST / workers))
        return Bounds(least, most // workers + 1 + int(amount * most / workers))

    def copy_to_lose(self, shard: str) -> SparedCopy | None:
        """Return a shard's newest checkpoint of a job, if all shards have an earlier one."""
        others = [self.state(other) for other in self.shards if other != shard]
        return damage.copy_to_lose(self.state(shard), others)

    def can_lose(self, workers: Collection[str]) -> bool:
        """Return whether the job goes on if some workers die.

        Without a parameter server, another one must have trained as late as any, and must not be about to go.
        """
        if not self._all_reduce:
            return True
        staying = {process.name: process for process in self.supervisor.staying("worker")}
        attempts = {name: self._last_attempt(process) for name, process in staying.items()}
        last = max(attempts.values(), default=-1)
        return any(attempt == last >= 0 for name, attempt in attempts.items() if name not in workers)

    def _last_attempt(self, process: Process) -> int:
        """Return the last attempt in which a worker has trained since its last start; -1 for none."""
        if not self.trains(process):
            return -1
        with self._journal(process.name, process.starts - 1).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _LAST_BYTES))
            *_, last = parse(file.read().splitlines())
        attempt: int = last[1]
        return attempt

    def _ask(self, what: str, worker: str, ask: Callable[[ManagerClient, str], str]) -> str | None:
        """Return the manager's answer; None if it does not answer, or was asked just now."""
        if time.monotonic() < self._asked.get((what, worker), 0.0) + _STATUS_SECONDS:
            return None
        job = next(job for job, workers in self.jobs.items() if worker in (*workers, *self.guests))
        try:
            with ManagerClient(self.manager, timeout=_STATUS_SECONDS) as manager:
                return ask(manager, job)
        except EvenpaceError:
            return None
        finally:
            self._asked[what, worker] = time.monotonic()

    def _journal(self, worker: str, start: int) -> Path:
        return self.folder / "journals" / f"{worker}-{start}.jsonl"

    def stop_file(self, job: str) -> Path:
        """Return the file that tells a job's workers their last iteration, once it is written."""
        return self.folder / f"{job}.stop"

    def start_workers(self) -> None:
        """Have the supervisor start the workers, and start them again when they end."""
        self.supervisor.wanted = {*self.addresses, *self.workers}

    def journals(self, worker: str) -> list[Path]:
        """Return a worker's journals, one for each start, in order."""
        starts = self.supervisor.processes[worker].starts
        paths = [self._journal(worker, start) for start in range(starts)]
        return [path for path in paths if path.exists()]

    def ledgers(self, shard: str, job: str) -> list[Path]:
        """Return the ledger of a job at a shard, if there is one yet, in a list."""
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
            self.disks[name] = disks.make_disk(name, self.state(name))
            self._ending.callback(disks.unmount, self.disks[name])

    def _make_network(self) -> None:
        workers = [*self.workers, *self.guests]
        with contextlib.ExitStack() as undone:
            try:
                network = undone.enter_context(WorkerNetwork(len(workers)))
            except NetworkError as error:
                raise NotPossibleHereError(str(error)) from error
            # Ears first: where packets cannot be dropped, workers get no network either.
            self.ears = {
                name: Ear(network.address(place), network.prefix(place)) for place, name in enumerate(workers)
            }
            self._prefixes = {name: network.prefix(place) for place, name in enumerate(workers)}
            self._ending.enter_context(undone.pop_all())
        self._local.host = self.proxy.host = network.host

    def _make_failing_writes(self) -> None:
        library = make_library(self.folder)
        for name in self.addresses:
            self.writes[name] = FailingWrites(library, self.folder / f"{name}.failing", self.state(name))

    def _find_clock(self) -> None:
        self._library = clocks.find_library()

    def state(self, service: str) -> Path:
        """Return the folder of a service's state."""
        return self.folder / "state" / service

    def _shard_options(self, name: str) -> Sequence[str]:
        return (
            *("--state", str(self.state(name))),
            *("--checkpoint-every", str(self.settings.checkpoint_every)),
            *("--ledger", str(self.folder / "ledgers" / name)),
            *(("--deterministic",) if self.settings.deterministic else ()),
        )

    def _worker_arguments(self, job: str, name: str, starts: int) -> Sequence[str]:
        argument = as_argument(
            journal=self._journal(name, starts),
            stop=self.stop_file(job),
            out=self.folder / "parameters" / f"{name}.npz",
            pause=self.settings.pause,
            micro_batch=MICRO_BATCH if self.settings.exact else None,
            schedule=self.settings.sizer == "schedule",
        )
        return [argument]

    def _surroundings(self, name: str) -> Surroundings:
        """Return surroundings with a clock that can be made to jump, its witness, and one thread for sums."""
        log = self.folder / f"{name}.log"
        environment = {
            "TMPDIR": str(self.folder / "temporary"),
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        if self._library is not None:
            environment |= clocks.environment(self._library, log.with_suffix(".offset"))
        if name in self.writes:
            preloaded = environment.get("LD_PRELOAD", "")
            environment |= self.writes[name].environment()
            environment["LD_PRELOAD"] = f"{environment['LD_PRELOAD']}:{preloaded}".removesuffix(":")
        witness = ("lab.chaos.witness", str(log.with_suffix(".clock")))
        return Surroundings(self._prefixes.get(name, ()), witness, environment)
