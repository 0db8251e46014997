"""Our commands as simulated processes, and what `subprocess`, `psutil` and `select` are to who starts them.

A `Popen` of `python -m evenpace manager`, `ps` or `worker` runs the command's function, with the
configuration that the command line makes, in a process of the world. Workers run
`tests.scripts.train_least_squares`, also below `tests.scripts.freeze_and_run`, which freezes them at a point
of the protocol.
"""

import asyncio
import importlib
import signal
import subprocess as real_subprocess
import sys
from collections import deque
from pathlib import Path

import psutil as real_psutil

from tests.simulation import network
from tests.simulation.modules import like, threading
from tests.simulation.world import Killed, World


class _Pipe:
    """A process's standard output, of which others read lines."""

    def __init__(self):
        self._lines, self._waiters, self._has_ended = deque(), deque(), False

    def add(self, line):
        """Write a line."""
        self._lines.append(f"{line}\n".encode())
        World.current.wake(self._waiters)

    def end(self):
        """End it: its process has ended."""
        self._has_ended = True
        World.current.wake(self._waiters)

    def readline(self):
        """Return the next line, once there is one; none at the end."""
        while not self._lines and not self._has_ended:
            World.current.wait(self._waiters)
        return self._lines.popleft() if self._lines else b""

    def close(self):
        """Read no more."""
        self._lines.clear()


class Popen:
    """`subprocess.Popen`.

    Attributes:
        session: Of a worker, once it has one.
    """

    def __init__(self, args, stdin=None, stdout=None, stderr=None, env=None, start_new_session=False):
        _, module, program, self._command, *self._options = args[args.index(sys.executable) :]
        assert (module, program) == ("-m", "evenpace"), f"not simulated: {args}"
        self.args, self.returncode, self.session = args, None, None
        self.stdin, self.stdout = None, _Pipe() if stdout == real_subprocess.PIPE else None
        self._log = Path(stderr.name)
        self._ended = threading.Event()
        self._terminate = None  # what SIGTERM calls; None: it kills
        self._is_told = False  # to end, while it was frozen
        self._point = None  # iteration, method, and calls of it to let pass, before the process freezes
        self.process = World.current.process(f"{self._command}-{len(World.current.processes)}")
        self.process.popen = self
        self.pid = self.process.pid
        World.current.spawn(self.process, self._run)

    def poll(self):
        """Return its status, if it has ended."""
        return self.returncode

    def wait(self, timeout=None):
        """Wait until it has ended."""
        if not self._ended.wait(timeout):
            raise real_subprocess.TimeoutExpired(self.args, timeout)
        return self.returncode

    def kill(self):
        """Kill it."""
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number):
        """Send it a signal, unless it has ended."""
        if self.returncode is not None:
            return
        if number == signal.SIGSTOP:
            self.process.freeze()
        elif number == signal.SIGCONT:
            if self.process.is_frozen:
                self.process.thaw()
            if self._is_told:
                self.send_signal(signal.SIGTERM)
        elif number == signal.SIGTERM and self.process.is_frozen:
            self._is_told = True
        elif number == signal.SIGTERM and self._terminate is not None:
            World.current.at(0, self.process, self._terminate)
        else:
            self._end(-number)

    def log(self, line):
        """Append a line to what it has said."""
        with self._log.open("a") as stream:
            stream.write(f"{line}\n")

    def before(self, method):
        """Freeze before this call of a method, if that is the point."""
        now = self.session.assignment if self._point else None
        if now is None or self._point[1] != method or now.iteration < self._point[0]:
            return
        iteration, _, left = self._point
        self._point = (iteration, method, left - 1) if left else None
        if not left:
            self.process.freeze()
            World.current.sleep(0)  # which lasts until it goes on

    # -- what the command's function calls

    def serve(self, service, address, limits, security, announce):
        """`evenpace.serve.serve`."""
        stopping = threading.Event()
        self._terminate = stopping.set

        async def run():
            server = importlib.import_module("rpc.server").Server(service, limits, security)
            announce(await server.start(address))
            await asyncio.get_running_loop().run_in_executor(None, stopping.wait)
            await server.stop()

        network.run(run())

    def announce(self, address):
        """`evenpace.cli.peers.announce`."""
        if self.stdout is not None:
            self.stdout.add(f"listening on {address}")

    def open_session(self, config):
        """`evenpace.context.open_session`."""
        self.session = importlib.import_module("worker.session").Session(config)
        return self.session

    def run_script(self, script, arguments):
        """`evenpace.launch.run_script`."""
        if script.stem == "freeze_and_run":
            point, script, *arguments = arguments
            iteration, method, left = point.split(":")
            self._point = int(iteration), method, int(left)
        assert Path(script).stem == "train_least_squares", f"not simulated: {script}"
        importlib.import_module("tests.scripts.train_least_squares").main(list(arguments))

    def _run(self):
        command = getattr(importlib.import_module("evenpace.cli.services"), self._command)
        status = 0
        try:
            options = command.make_context(self._command, self._options).params
            command.callback(**options)
        except Killed:
            raise
        except BaseException as error:  # noqa: BLE001 - it is how the process ends
            self.log(f"{type(error).__name__}: {error}")
            status = 1
        if self.session is not None:
            self.session.close()
        self._end(status)

    def _end(self, status):
        self.returncode = status
        self.process.kill()
        if self.stdout is not None:
            self.stdout.end()
        self._ended.set()


def _popen():
    """Return the `Popen` of the process that runs."""
    return World.current.running.popen


def _freezing(send):
    def call(client, method, *arguments, **options):
        if _popen() is not None:
            _popen().before(method)
        send(client, method, *arguments, **options)

    return call


def replace():
    """Replace what reaches beyond a process, in the modules that `import` finds now."""
    module = importlib.import_module
    module("evenpace.serve").serve = lambda *arguments: _popen().serve(*arguments[:5])
    services = module("evenpace.cli.services")
    services.announce = lambda address: _popen().announce(address)
    services.always_log = lambda fields: None
    module("evenpace.context").open_session = lambda config, *_, **__: _popen().open_session(config)
    module("evenpace.launch").run_script = lambda *arguments: _popen().run_script(*arguments)
    module("evenpace").session = lambda: _popen().session
    module("ps.optimizers").prepare = lambda: None
    module("worker.parent").end_with_parent = lambda parent, by: None
    client = module("rpc.client").Client
    client.send = _freezing(client.send)


class _Process:
    """`psutil.Process`."""

    def __init__(self, pid):
        self._process = next(process for process in World.current.processes if process.pid == pid)

    def status(self):
        """Return whether it runs, is stopped, or has ended."""
        if self._process.is_dead:
            return real_psutil.STATUS_ZOMBIE
        return real_psutil.STATUS_STOPPED if self._process.is_frozen else real_psutil.STATUS_RUNNING

    def children(self, recursive=False):
        """Return what it has started: nothing."""
        return []


subprocess = like(real_subprocess, Popen=Popen)
psutil = like(real_psutil, Process=_Process)
select = like(network.select, select=lambda readers, writers, errors, timeout: (readers, writers, errors))
