"""Starts real Python processes without their imports: each is forked from one that has imported everything.

Importing PyTorch and the like takes a process seconds, and the tests start hundreds. While `installed`, a
`subprocess.Popen` of `python -m evenpace ...` (or another of `MODULES`) is forked by a *zygote*, a process
that has imported what they need. What is forked is a child of the process that asked for it, with a process
id, signals, mounts and an exit status like any other, and runs the module as `python -m` would. What
`nsenter` is to start in a network namespace is forked there.

A test that must see an interpreter start, such as one of what an import brings in, has the zygote
`set_aside`, or starts a process otherwise: by `python -c`, by a script's path, or with other `SETTINGS`.

This module must not know what is tested.
"""

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import resource
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tests import ROOT

MODULES = ("evenpace", "lab.chaos.witness", "tests.scripts")  # and the modules in the last
# Variables that the interpreter, or a library of `IMPORTED`, reads when it starts or is imported, by the
# beginnings of their names. PYTHONPATH is none of them: what is forked goes by its own.
SETTINGS = ("PYTHON", "LD_", "OMP_", "MKL_", "OPENBLAS_")
IMPORTED = (
    "batchsize_manager.service",
    "cryptography.x509",
    "lab.chaos.witness",
    "evenpace.context",
    "evenpace.dashboard.api",
    "lab.experiments.flexrr",
    "lab.workloads.by_name",
    "evenpace.launch",
    "evenpace.serve",
    "evenpace.torch",
    "lab.workloads",
    "ps.service",
    "rich.live",
    "sklearn.datasets",
    "torch._dynamo",  # which the first optimiser imports
    "torch.distributed",
    "uvicorn",
)
# What workers with Keras on TensorFlow, or with JAX, need, which have no PyTorch.
FRAMEWORKS = {
    "keras": ("evenpace.context", "evenpace.keras", "evenpace.launch", "sklearn.datasets"),
    "jax": ("evenpace.context", "evenpace.jax", "evenpace.launch", "flax", "optax", "sklearn.datasets"),
}

_ordinary = subprocess.Popen
_STARTERS = {"lab", "demo", "run", "profile"}  # commands that start processes of ours in turn
_PR_SET_CHILD_SUBREAPER = 36
MOST = 2**17  # bytes of a request
_ROOM = 2048 * " "  # for the command lines of what is forked
NAME = "tests.zygote"  # is in a zygote's command line, and in no other


@contextlib.contextmanager
def installed(imported: Sequence[str] = IMPORTED, command: str | None = None) -> Iterator[None]:
    """Let `subprocess.Popen` start processes of `MODULES` by forking a zygote, which is started here.

    Args:
        imported: The modules that it imports.
        command: The one command of `evenpace` that it is for; None for all.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        popen = subprocess.Popen(
            [
                sys.executable,
                "-c",
                f"from tests.zygote import _main; _main({theirs.fileno()}, {imported})",
                _ROOM,
            ],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            cwd=ROOT,
        )
    try:
        with _forking(ours, command):
            yield
    finally:
        popen.kill()  # it may still be importing
        popen.wait()


@contextlib.contextmanager
def _forking(requests: socket.socket, command: str | None = None) -> Iterator[None]:
    """Likewise, with a zygote that is there; it ends when `requests`, the socket to it, is shut down."""
    before, zygotes = subprocess.Popen, _Popen.zygotes
    subprocess.Popen, _Popen.zygotes = _Popen, {**zygotes, command: _Zygote(requests)}  # type: ignore[misc]
    try:
        yield
    finally:
        subprocess.Popen, _Popen.zygotes = before, zygotes  # type: ignore[misc]
        with contextlib.suppress(OSError):  # the zygote has ended already
            requests.shutdown(socket.SHUT_RDWR)  # processes that this one has forked may have the socket, too
        requests.close()


@contextlib.contextmanager
def set_aside() -> Iterator[None]:
    """Have all processes start as ever."""
    ours, subprocess.Popen = subprocess.Popen, _ordinary  # type: ignore[misc]
    try:
        yield
    finally:
        subprocess.Popen = ours  # type: ignore[misc]


class _Zygote:
    """The process that forks, for those who ask it to."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._lock = threading.Lock()
        self.settings = settings(os.environ)  # the `SETTINGS` that it was started with
        self.mounts = os.readlink(_mounts())  # its mount namespace, which is that of this thread

    def fork(self, request: Mapping[str, object], streams: Sequence[int]) -> int:
        """Return the process id of a new process.

        Args:
            request: What it becomes; see `become`.
            streams: Its standard input, output and error.

        Raises:
            ChildProcessError: The zygote has ended.
        """
        with self._lock, _adopting():
            socket.send_fds(self._requests, [json.dumps(request).encode()], list(streams))
            answer = self._requests.recv(64)
        if not answer:
            raise ChildProcessError("the zygote of the tests has ended")
        return int(answer)


@contextlib.contextmanager
def _adopting() -> Iterator[None]:
    """Let this process, in init's place, become the parent of what its descendants leave behind."""
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


class _Popen(subprocess.Popen):  # type: ignore[type-arg]
    """A process that is forked where that can be, and started as ever where not."""

    zygotes: Mapping[str | None, _Zygote] = {}  # by the command that they are for; None: all others

    def _execute_child(self, args: Any, *rest: Any) -> None:
        given = dict(zip(_PARAMETERS, rest, strict=True))
        environment = dict(os.environ if given["env"] is None else given["env"])
        command = _command(args) if _is_plain(given) else None
        network, arguments = command or (None, [])
        zygote = next((its for name, its in self.zygotes.items() if name in arguments), self.zygotes[None])
        if command is None or settings(environment) != zygote.settings:
            super()._execute_child(args, *rest)  # type: ignore[misc]
            return
        namespaces = [] if network is None else [network]
        if os.readlink(_mounts()) != zygote.mounts:
            namespaces.append(_mounts())
        request = {
            "namespaces": namespaces,
            "arguments": arguments,
            "cwd": os.path.abspath(given["cwd"] or os.curdir),
            "environment": environment,
            "session": given["start_new_session"],
            "files": resource.getrlimit(resource.RLIMIT_NOFILE),
            "cpus": sorted(os.sched_getaffinity(0)),
            "parent": os.getpid(),
        }
        streams = (given["p2cread"], given["c2pwrite"], given["errwrite"])
        inherited = [number if stream == -1 else stream for number, stream in enumerate(streams)]
        self.pid = zygote.fork(request, inherited)
        self._child_created = True
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(given[pipe] for pipe in pipes))  # type: ignore[attr-defined]


# The names of what `Popen._execute_child` takes after `self` and `args`.
_code = _ordinary._execute_child.__code__  # type: ignore[attr-defined]
_PARAMETERS = _code.co_varnames[2 : _code.co_argcount]


def _is_plain(given: Mapping[str, Any]) -> bool:
    """Return whether a process is to have nothing that the zygote cannot give it."""
    unusual = ("executable", "preexec_fn", "shell", "pass_fds")
    return not any(given[name] for name in unusual) and (given["cwd"] is None or os.path.isdir(given["cwd"]))


def is_forked() -> bool:
    """Return whether this process is one that a zygote has forked."""
    return _End.forked


def _mounts() -> str:
    """The file of this thread's mount namespace, for any process."""
    return f"/proc/{threading.get_native_id()}/ns/mnt"


def settings(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of an environment that must be the zygote's."""
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(SETTINGS) and name not in ("PYTHONPATH", "PYTHONUNBUFFERED")
    }


def _command(args: Any) -> tuple[str | None, list[str]] | None:
    """Parse a command line that runs one of `MODULES`; None for any other.

    Returns:
        The file of the network namespace that it is to run in, if any; the module and its arguments.
    """
    words = [os.fspath(word) for word in args] if isinstance(args, (list, tuple)) else []
    match words:
        case ["nsenter", network, "--", *command] if network.startswith("--net="):
            words = command
        case _:
            network = None
    match words:
        case [sys.executable, "-m", module, *_] if module in MODULES or module.startswith(f"{MODULES[-1]}."):
            return network and network.removeprefix("--net="), words[2:]
    return None


# -- in the zygote


def _main(number: int, imported: Sequence[str]) -> None:
    """Import modules, and fork until the other end of the socket `number` is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for who started this
    # JAX warns of forks because of its threads, of which it has none before it computes.
    warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called", category=RuntimeWarning)
    atexit.register(_End.now)  # the first of all, and so the last to be called
    os.environ |= {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "2"}  # as they are imported
    for name in imported:
        importlib.import_module(name)
    gc.freeze()  # what is forked need not look through, and so copy, what it shares
    _run(socket.socket(fileno=number))


def _run(requests: socket.socket) -> None:
    """Fork as asked; each new process goes on from here, and this one when nobody can ask any more."""
    with requests:
        request = _serve(requests)
    if request is not None:
        become(request)


def _serve(requests: socket.socket) -> dict[str, Any] | None:
    """Return, in a new process, the request for it; in the zygote itself, None in the end."""
    while True:
        text, streams, _, _ = socket.recv_fds(requests, MOST, 3)
        if not text:
            return None
        reading, writing = os.pipe()
        between = os.fork()
        if between == 0:
            # The fork of a fork, since what this one leaves behind becomes a child of the process that asked.
            between = os.getpid()
            if (child := os.fork()) != 0:
                os.write(writing, b"%d" % child)
                os._exit(0)
            while os.getppid() == between:
                time.sleep(0.0005)
            os.close(reading)
            os.close(writing)
            for target, stream in enumerate(streams):
                os.dup2(stream, target)
                os.close(stream)
            return json.loads(text)  # type: ignore[no-any-return]
        for stream in (writing, *streams):
            os.close(stream)
        os.waitpid(between, 0)
        requests.send(os.read(reading, 64))
        os.close(reading)


def become(request: Mapping[str, Any]) -> None:
    """Turn a new process into `python -m MODULE ARGUMENTS`, or `python SCRIPT ARGUMENTS`.

    Args:
        request: `namespaces`, the files of those that it enters; `arguments`, the module or the script's
            path first; `cwd`; `environment`; `session`, whether it gets one of its own; `files`, its limits
            of open files; `cpus` that it may use; `parent`, the id of the process that asked. What is left
            out stays as it is here.
    """
    if os.getppid() != request["parent"]:  # it has ended meanwhile
        os._exit(1)
    module, *arguments = request["arguments"]
    is_script = module.endswith(".py")
    for path in request.get("namespaces", ()):
        with open(path) as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), 0):
                raise OSError(ctypes.get_errno(), "setns", path)
    if request.get("session"):
        os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if "files" in request:
        resource.setrlimit(resource.RLIMIT_NOFILE, tuple(request["files"]))
        os.sched_setaffinity(0, request["cpus"])
    os.chdir(request["cwd"])
    own = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ.clear()
    os.environ.update(request["environment"])
    path = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    first = os.path.dirname(os.path.abspath(module)) if is_script else request["cwd"]
    sys.path[:] = [first, *path, *(entry for entry in sys.path[1:] if entry not in own)]
    sys.argv = [module, *arguments]
    sys.orig_argv = [sys.executable, *([] if is_script else ["-m"]), *request["arguments"]]
    show(sys.orig_argv)
    np.random.seed()
    tempfile.tempdir = None  # it was chosen by the variables of the zygote
    if "." in module and not is_script:  # it may have been imported, unlike a package's __main__
        sys.modules.pop(module, None)
    _open_streams()
    with _End(), contextlib.ExitStack() as ending:
        if arguments and arguments[0] in _STARTERS:
            ending.enter_context(_forking(_fork_zygote()))
        if is_script:
            runpy.run_path(module, run_name="__main__")
        else:
            runpy.run_module(module, run_name="__main__", alter_sys=True)


def show(words: Sequence[str]) -> None:
    """Write a command line where the kernel shows this process's."""
    fields = open("/proc/self/stat").read().rpartition(")")[2].split()  # noqa: SIM115 - closed with the line
    begin, end = int(fields[45]), int(fields[46])
    text = "\0".join(words).encode()[: end - begin - 1]
    ctypes.memmove(begin, text.ljust(end - begin, b"\0"), end - begin)


class _End:
    """Ends a process that was forked as the interpreter does, but for tidying up its memory.

    That would touch, and so copy, nearly all that it shares with the zygote.
    """

    forked = False
    status: int | None = None  # none for a command of evenpace, which ends by itself within the context

    def __enter__(self) -> None:
        _End.forked = True

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        code = error.code if isinstance(error, SystemExit) else 0 if error is None else 1
        _End.status = 0 if code is None else code if isinstance(code, int) else 1

    @staticmethod
    def now() -> None:
        """End, in what was forked, once threads and all who wanted to do something at the end are through."""
        if _End.status is not None:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(_End.status & 0xFF)


def _fork_zygote() -> socket.socket:
    """Fork this process, so that what is forked is a zygote for it; the socket to that."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        ours.close()
        stay_behind()
        _run(theirs)
        sys.exit()
    theirs.close()
    return ours


def stay_behind() -> None:
    """Let go of what this process was forked with, as a zygote does: streams, command line and Ctrl-C."""
    show([sys.executable, NAME])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with open(os.devnull, "r+b", buffering=0) as nothing:
        for number in range(3):
            os.dup2(nothing.fileno(), number)


def _open_streams() -> None:
    """Open Python's standard streams as the interpreter does when it starts."""
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = open(  # noqa: SIM115 - for the process's life
            number,
            mode="w" if number else "r",
            buffering=1 if number == 2 or os.isatty(number) else -1,
            encoding="utf-8",
            errors="backslashreplace" if number == 2 else "strict",
            closefd=False,
        )
        if unbuffered and number:  # by whole lines, as `sitecustomize` has it
            stream.reconfigure(line_buffering=True)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
