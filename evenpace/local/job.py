"""A training job on this machine, from the start of its processes to their end. It draws nothing."""

import contextlib
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from batchsize_manager.client import ManagerClient
from evenpace.dashboard.listening import free_page_address
from evenpace.local.cluster import LOOPBACK, CpuShare, LocalCluster, Surroundings
from evenpace.local.followed_logs import FollowedLogs
from evenpace.local.job_config import LocalJob
from idl.errors import EvenpaceError
from rpc.address import Address
from rpc.processes import ProcessFailedError

_POLL_SECONDS = 0.1
_CLAIM = "\0evenpace-run"  # an abstract socket, which the kernel frees with its process


class Shows(Protocol):
    """What a job is shown on."""

    def line(self, name: str, line: str) -> None:
        """Show a line that a process has printed."""

    def note(self, text: str) -> None:
        """Show a line about the job."""


def run(job: LocalJob, usual: Address, shows: Shows, finished: Callable[[Address], None]) -> None:
    """Run a job until its workers have ended well, then end its services; none of them stays behind.

    Args:
        usual: Address at which the manager listens, unless something else does.
        shows: What it is shown on.
        finished: Function that is called with the manager's address once all workers have ended well.

    Raises:
        ProcessFailedError: A worker has failed, or a service has ended; the others have been ended.
        UnavailableError: A service does not listen in time.
    """
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="evenpace-run-")))
        page = None if job.http is None else free_page_address(job.http)
        http = () if page is None else ("--http", str(page))
        listen = stack.enter_context(_place(usual))
        cluster = LocalCluster(
            folder,
            workers=len(job.names),
            shards=job.shards,
            manager_options=("--listen", str(listen), *http, *job.manager_options),
            shard_options=lambda name: job.shard_options,
            worker_options=job.worker_options,
            surroundings=lambda name: Surroundings(environment={"PYTHONUNBUFFERED": "1"}),
        )
        stack.enter_context(FollowedLogs(cluster.processes, shows.line))
        stack.callback(cluster.stop)
        try:
            cluster.start()
            shows.note(_started(job, cluster.manager, usual, page))
            for name, cores in zip(job.names, job.cpu_shares or [None] * len(job.names), strict=True):
                cluster.start_worker(name, job.script, job.arguments, share=CpuShare(cores))
            _wait(cluster, job.restarts, shows)
        except ProcessFailedError:
            if (failed := cluster.failed()) is None:
                raise
            raise ProcessFailedError(
                f"{failed.end_in_words()}, which ends the run; what it printed is above"
            ) from None
        finished(cluster.manager)


def _wait(cluster: LocalCluster, restarts: int, shows: Shows) -> None:
    """Wait until all workers have ended well; start a failed one again, up to `restarts` times each.

    A worker that comes back once others have finished the job is not needed: it would wait for them to begin
    another one.

    Raises:
        ProcessFailedError: A worker has failed too often, or a service has ended.
    """
    gone: set[str] = set()
    while True:
        try:
            if not cluster.check(gone):
                return
        except ProcessFailedError:
            failed = cluster.failed(gone)
            if failed is None or failed.role != "worker" or failed.starts > restarts:
                if failed is not None and failed.role == "worker" and not restarts:
                    shows.note("a failed worker ends the run; --restarts 3 restarts it up to three times")
                raise
            if _is_finished(cluster):
                gone.add(failed.name)
                shows.note(f"{failed.end_in_words()}, and the others have finished the job")
            else:
                times = f"{failed.starts} of {restarts} times at most"
                shows.note(f"{failed.end_in_words()}; started again, {times}")
                failed.start()
        if _is_finished(cluster):
            late = [one for one in cluster.processes if one.starts > 1 and one.is_running]
            for process in late if late and _job_gathers(cluster.manager) else ():
                gone.add(process.name)
                shows.note(f"{process.name} is back too late: the others have finished the job")
                process.end()
        time.sleep(_POLL_SECONDS)


def _is_finished(cluster: LocalCluster) -> bool:
    """Return whether a worker has ended well, which it does once the job is over."""
    return any(one.role == "worker" and one.popen and one.popen.poll() == 0 for one in cluster.processes)


def _job_gathers(manager: Address) -> bool:
    """Return whether a job waits for its workers; False if the manager does not say."""
    try:
        with ManagerClient(manager) as client:
            return any(summary.state == "gathering" for summary in client.jobs().jobs)
    except EvenpaceError:
        return False


@contextlib.contextmanager
def _place(usual: Address) -> Iterator[Address]:
    """Yield where the manager is to listen: at the usual address, or at a free port if that is taken.

    Of several runs that begin at once, one has the usual address.
    """
    with socket.socket(socket.AF_UNIX) as claim:
        try:
            claim.bind(_CLAIM)
            with socket.create_server((usual.host, usual.port)):
                place = usual
        except OSError:
            place = Address(LOOPBACK, 0)
        yield place


def _started(job: LocalJob, manager: Address, usual: Address, page: Address | None) -> str:
    """Return what is running, and how to watch it, in words."""
    workers, shards = len(job.names), job.shards
    parts = [f"{workers} worker{'' if workers == 1 else 's'}"]
    parts.append("all-reduce" if not shards else f"{shards} shard{'' if shards == 1 else 's'}")
    option = "" if manager == usual else f" --manager {manager}"
    watch = "" if page is None else f", http://{page}/"
    return f"{', '.join(parts)}; the manager is at {manager}. To watch: evenpace top{option}{watch}"
