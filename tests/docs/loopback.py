"""Networks for commands whose ports are fixed, so that several such commands can run side by side.

This module must not know what a document is.
"""

import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

_ROOT = os.geteuid() == 0
_UNSHARE = ["unshare", "--net", *([] if _ROOT else ["--map-current-user", "--keep-caps"])]
_KEEP = "ip link set lo up && echo up && exec cat"  # cat ends when nobody is left who could write to it


@contextlib.contextmanager
def own_network() -> Iterator[list[str]]:
    """Return the command to put before another, so that all ports of 127.0.0.0/8 are free for that.

    That is a network namespace with nothing but a loopback device. Where none can be made, for lack of rights
    or of iproute2, it is the machine's own network, which one process at a time gets.
    """
    with contextlib.ExitStack() as stack:
        keeper = _namespace()
        if keeper is not None:
            stack.enter_context(keeper)  # closes its pipes, and waits for its end
            yield _enter(keeper.pid)
        else:
            lock = Path(tempfile.gettempdir()) / f"evenpace-network-{os.geteuid()}.lock"
            fcntl.flock(stack.enter_context(lock.open("w")), fcntl.LOCK_EX)
            yield []


def _enter(keeper: int) -> list[str]:
    """Return the command to put before another, for a namespace's keeper; the tests' zygote knows root's."""
    if _ROOT:
        return ["nsenter", f"--net=/proc/{keeper}/ns/net", "--"]
    return ["nsenter", "--net", "--user", "--preserve-credentials", f"--target={keeper}", "--"]


def _namespace() -> "subprocess.Popen[str] | None":
    """A process that keeps a namespace until its input ends; none where it could not make one."""
    if not all(map(shutil.which, (_UNSHARE[0], "nsenter", "ip"))):
        return None
    keeper = subprocess.Popen(
        [*_UNSHARE, "sh", "-c", _KEEP],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert keeper.stdout is not None
    if keeper.stdout.readline() == "up\n":
        return keeper
    keeper.communicate()
    return None
