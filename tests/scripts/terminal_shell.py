"""A bash in which `forked_command.py` has processes forked, where a zygote has forked this one."""

import contextlib
import ctypes
import json
import os
import select
import signal
import socket

from tests import zygote
from tests.scripts.forked_command import TERMINAL

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Leave a zygote as a child, in the same session, and become bash."""
    if zygote.is_forked():
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            os.environ[TERMINAL] = f"evenpace-terminal-{os.getpid()}"
            listener.bind("\0" + os.environ[TERMINAL])
            listener.listen(64)
            if os.fork() == 0:
                serve(listener)
    os.execvp("bash", ["bash", "--norc"])


def serve(listener: socket.socket) -> None:
    """Have a process forked for each connection, until bash has ended."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    zygote.stay_behind()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel takes their statuses
    while True:
        connection, _ = listener.accept()
        with connection:
            if os.fork() == 0:
                listener.close()
                keep(connection)


def keep(connection: socket.socket) -> None:
    """Fork as asked; tell the process id, and the status in the end. Who asked takes the process along."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    text, streams, _, _ = socket.recv_fds(connection, zygote.MOST, 3)
    request = json.loads(text) | {"parent": os.getpid()}
    if zygote.settings(request["environment"]) != zygote.settings(os.environ):
        connection.send(b"0")
        os._exit(0)
    if (child := os.fork()) == 0:
        connection.close()
        set_group(0, request["group"])
        for target, stream in enumerate(streams):
            os.dup2(stream, target)
            os.close(stream)
        zygote.become(request)
        raise SystemExit
    set_group(child, request["group"])
    for stream in streams:
        os.close(stream)
    connection.send(b"%d" % child)
    ended = os.pidfd_open(child)
    if ended not in select.select([connection, ended], [], [])[0]:  # who asked was killed
        os.kill(child, signal.SIGKILL)
    with contextlib.suppress(OSError):
        connection.send(b"%d" % os.waitpid(child, 0)[1])
    os._exit(0)


def set_group(process: int, group: int) -> None:
    """Put a process into a process group, unless that has ended."""
    with contextlib.suppress(OSError):
        os.setpgid(process, group)


if __name__ == "__main__":
    main()
