"""A bash in which `forked_command.py` has processes forked, where a zygote has forked this one."""

import contextlib
import ctypes
import json
import os
import selectors
import signal
import socket
import sys
from typing import Any

from tests import zygote
from tests.scripts.forked_command import ZYGOTE

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Leave a zygote as a child, in the same session, and become bash."""
    if zygote.is_forked():
        name = f"evenpace-terminal-{os.getpid()}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(f"\0{name}")
            listener.listen(64)
            if os.fork() == 0:
                become_zygote(listener)
        os.environ[ZYGOTE] = name
    os.execvp("bash", ["bash", "--norc"])


def become_zygote(listener: socket.socket) -> None:
    """Fork as asked, until bash has ended; what is forked ends here."""
    zygote.show([sys.executable, zygote.NAME])
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with open(os.devnull, "r+b", buffering=0) as nothing:
        for number in range(3):
            os.dup2(nothing.fileno(), number)
    request, streams = serve(listener)
    for target, stream in enumerate(streams):
        os.dup2(stream, target)
        os.close(stream)
    zygote.become(request)
    raise SystemExit


def serve(listener: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Return, in a new process, the request for it and its streams."""
    settings = zygote.settings(os.environ)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    asking: dict[int, socket.socket] = {}  # by process id of who was forked for it
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is listener:
                    selector.register(listener.accept()[0], selectors.EVENT_READ)
                elif key.fileobj == woken:
                    os.read(woken, 4096)
                    tell_ends(asking, selector)
                elif key.data is not None:  # who asked was killed
                    selector.unregister(key.fileobj)
                    if key.data in asking:
                        os.kill(key.data, signal.SIGKILL)
                else:
                    connection = key.fileobj
                    text, streams, _, _ = socket.recv_fds(connection, zygote.MOST, 3)
                    request = json.loads(text)
                    child = 0
                    if zygote.settings(request["environment"]) == settings:
                        parent = os.getpid()
                        if (child := os.fork()) == 0:
                            signal.set_wakeup_fd(-1)
                            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                            set_group(0, request["group"])
                            selector.close()
                            for one in (listener, connection, *asking.values()):
                                one.close()
                            return request | {"parent": parent}, streams
                        set_group(child, request["group"])
                        asking[child] = connection
                    for stream in streams:
                        os.close(stream)
                    selector.modify(connection, selectors.EVENT_READ, child)
                    connection.send(b"%d" % child)


def tell_ends(asking: dict[int, socket.socket], selector: selectors.BaseSelector) -> None:
    """Tell those who asked for processes that have ended."""
    while asking:
        child, status = os.waitpid(-1, os.WNOHANG)
        if child == 0:
            return
        with asking.pop(child) as connection, contextlib.suppress(BrokenPipeError):
            if connection in selector.get_map():
                selector.unregister(connection)
            connection.send(b"%d" % status)


def set_group(process: int, group: int) -> None:
    """Put a process into a process group, unless that has ended."""
    with contextlib.suppress(OSError):
        os.setpgid(process, group)


if __name__ == "__main__":
    main()
