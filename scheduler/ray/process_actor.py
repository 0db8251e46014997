"""The actor that owns one process of a job on a Ray cluster: a service, or a worker with the training script.

The process is a command of evenpace, as it runs anywhere else. It ends with its actor, however that ends.
"""

import contextlib
import fcntl
import logging
import re
import shutil
import socket
import tempfile
import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from idl.errors import EvenpaceError
from idl.version import __version__
from rpc.address import Address
from rpc.certificates import CA_KEY_FILE, issue
from rpc.processes import Process, command_line
from rpc.tokens import write_secret
from scheduler.ray.supervisor import Phase, Seen

FOLDER, LISTEN = "{folder}", "{listen}"
"""What a command has in place of the actor's folder, and of HOST:PORT to listen on."""

TLS = "tls"
"""Folder, within the actor's, of the process's certificate."""

_PLACE = re.compile(f"{re.escape(FOLDER)}|{re.escape(LISTEN)}")
_END_SECONDS = 5.0  # that a process may take to end before it is started again
_LOG_BYTES = 2**18  # of the log, in one answer
_CERTIFICATE_DAYS = 365
_PREFIX, _LOCK = "evenpace-ray-", "lock"

_locks: list[BinaryIO] = []  # held by this process

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Task:
    """The command of a process."""

    name: str  # its name in the job
    # A command of evenpace with its arguments; `FOLDER` and `LISTEN` stand for what only the actor knows.
    command: Sequence[str]
    # Contents of files by name, which it finds in `FOLDER`; only its own user can read them.
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    environment: Mapping[str, str] = field(default_factory=dict)  # variables added to those of the actor

    @property
    def is_service(self) -> bool:
        """Return whether it listens for others."""
        return any(LISTEN in word for word in self.command)


@dataclass(frozen=True)
class Described:
    """What an actor says of its process."""

    actor: str  # the actor's own id, another after each of its restarts
    node: str  # Ray's id of its node
    seen: Seen  # the process
    log: bytes  # what was added to its log since the last answer
    log_end: int  # position after `log`, for the next question
    version: str = __version__  # version of evenpace on its node


class ProcessActor:
    """An actor that starts, watches and ends one process; its methods return at once.

    Args:
        task: The command.
    """

    def __init__(self, task: Task) -> None:
        import ray

        self._task = task
        self._id = uuid.uuid4().hex
        self._node = ray.get_runtime_context().get_node_id()
        self._host: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        self._folder = make_folder()
        write_files(self._folder, task.files)
        if CA_KEY_FILE in task.files:
            issue(self._folder, TLS, (self._host,), _CERTIFICATE_DAYS)
        self._port = _free_port(self._host)
        self._lock = threading.Condition()
        self._generation = -1
        self._wanted: tuple[int, Mapping[str, str]] | None = None
        self._closing = False
        self._end_seconds = _END_SECONDS
        self._address: Address | None = None  # where the last start listened
        self._listened = False  # whether the present one did
        self._lacks = ""  # why the process could not be started; empty where it was
        self._log_told = 0  # position in the log
        self._process = Process(task.name, self._line, self._folder / "log", listens=task.is_service)
        # The kernel ends a process with the thread that has started it.
        self._thread = threading.Thread(target=self._run, name="evenpace-process", daemon=True)
        self._thread.start()

    def start(self, generation: int, environment: Mapping[str, str]) -> None:
        """Start the process, unless a start of this generation was asked for already."""
        with self._lock:
            if generation > max(self._generation, -1 if self._wanted is None else self._wanted[0]):
                self._wanted = (generation, environment)
                self._lock.notify()

    def tell(self, addresses: Mapping[str, str]) -> None:
        """Tell the process where services listen, by name; it reads that whenever it connects."""
        write_files(self._folder, {f"{name}.address": text.encode() for name, text in addresses.items()})

    def describe(self, actor: str, log_from: int) -> Described:
        """Describe the process.

        Args:
            actor: The actor's id, as far as the caller knows it.
            log_from: Position in this actor's log up to which the caller has it. Who does not know the actor
                is told the log from where the last one had it who did.
        """
        if actor == self._id:
            self._log_told = log_from
        position = self._log_told
        with self._lock:
            seen = self._seen()
        with contextlib.suppress(FileNotFoundError), (self._folder / "log").open("rb") as stream:
            stream.seek(position)
            log = stream.read(_LOG_BYTES)
            return Described(self._id, self._node, seen, log, position + len(log))
        return Described(self._id, self._node, seen, b"", position)

    def close(self, seconds: float) -> None:
        """End the process, by SIGTERM first and, if it has not ended after `seconds`, by SIGKILL."""
        with self._lock:
            self._closing, self._end_seconds = True, seconds
            self._lock.notify()
        self._thread.join()

    def remove(self) -> None:
        """Remove the process's files, its log among them; call it after `close`."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self) -> None:
        """Start the process whenever it is asked for, until the end."""
        while not self._closing:
            try:
                self._start_next()
            except Exception as error:  # noqa: BLE001 - as where files or disk are short; nobody sees this thread
                log.warning("%s cannot be started: %s", self._task.name, error)
                with self._lock:
                    self._lacks = f"it cannot be started: {error}"
                    if self._wanted is not None:
                        (self._generation, _), self._wanted = self._wanted, None
        self._process.end(self._end_seconds)

    def _start_next(self) -> None:
        """Wait until the process is to be started, and start it."""
        with self._lock:
            self._lock.wait_for(lambda: self._closing or self._wanted is not None)
            if self._closing:
                return
        self._process.end(self._end_seconds)
        with self._lock:
            assert self._wanted is not None
            (self._generation, environment), self._wanted = self._wanted, None
            self._listened, self._lacks = False, ""
            self._process.environment = {**self._task.environment, **environment}
            self._process.start()
        if self._task.is_service:
            self._wait_until_it_listens()

    def _wait_until_it_listens(self) -> None:
        try:
            address = self._process.address
        except EvenpaceError as error:
            log.warning("%s", error)
            address = None  # where it listened before, something else may by now
        with self._lock:
            self._address, self._listened = address, address is not None

    def _line(self, starts: int) -> Sequence[str]:
        """Return the command line; a service that is started again listens where it did."""
        listen = self._address or Address(self._host, 0)
        known = {FOLDER: str(self._folder), LISTEN: str(listen)}
        command, *arguments = [_PLACE.sub(lambda found: known[found[0]], word) for word in self._task.command]
        # A worker that lost its actor must not leave the job: if it was the last, this would end the job.
        return command_line(command, *arguments, killed=not self._task.is_service)

    def _seen(self) -> Seen:
        """Return what is seen of the process; the lock must be held."""
        if self._lacks:
            return Seen("ended", self._generation, 1, None, self._host, self._port, self._lacks)
        popen = self._process.popen
        status = None if popen is None else popen.poll()
        phase: Phase = "ready" if popen is None else "running" if status is None else "ended"
        address = str(self._address) if self._listened else None
        reason = self._process.tail() if phase == "ended" else ""
        return Seen(phase, self._generation, status, address, self._host, self._port, reason)


def make_folder() -> Path:
    """Make a folder for files of this process, and remove those of processes on this node that were killed.

    Its owner holds a lock on a file in it, which the kernel frees with the process, whoever else shares the
    disk.
    """
    remove_left_folders()
    new = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}"))
    lock = (new / _LOCK).open("wb")
    fcntl.flock(lock, fcntl.LOCK_EX)
    _locks.append(lock)
    # Nobody finds it before it is locked.
    return new.rename(new.with_name(new.name.removeprefix(".")))


def remove_left_folders() -> None:
    """Remove the folders of actors' processes on this node that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError), (folder / _LOCK).open("rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files that only their owner may read, each in one step, by their names within a folder."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_secret(folder / name, content)


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port
