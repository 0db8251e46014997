"""Processes that can be reached from here, by a port at which each listens for as long as it lives."""

import socket
import time
from collections.abc import Callable, Mapping
from concurrent.futures import wait

from worker.daemon_thread import in_daemon

_CONNECT_SECONDS = 2.0  # for one attempt to reach a host, after which another may be made
_CONNECT_PAUSE_SECONDS = 0.1
_NAME_SECONDS = 3.0  # for the hosts' names to be resolved, beyond that attempt


def reach(host: str, port: int, seconds: float, check: Callable[[], None]) -> None:
    """Wait until a process can be connected to that listens as long as it lives.

    Args:
        host: Its host's name or address.
        seconds: Seconds to wait, at most.
        check: Called before each attempt; what it raises ends the wait.

    Raises:
        OSError: It does not live any more, as its port refuses connections; or the time is up.
    """
    deadline = time.monotonic() + seconds
    while True:
        check()
        try:
            return socket.create_connection((host, port), _CONNECT_SECONDS).close()
        except ConnectionRefusedError:
            raise
        except OSError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(_CONNECT_PAUSE_SECONDS)


def unreached(members: Mapping[str, str], check: Callable[[], None] = lambda: None) -> list[str]:
    """Return those that cannot be reached, in words; all are tried at once, for as long as one attempt takes.

    Args:
        members: Addresses by name, HOST:PORT.
        check: As of `reach`.
    """
    check()
    tries = {}
    for name, address in members.items():
        host, _, number = address.rpartition(":")
        tries[name] = in_daemon(reach, host.strip("[]"), int(number), 0.0, check)
    wait(tries.values(), _CONNECT_SECONDS + _NAME_SECONDS)
    found = []
    for name, one in tries.items():
        error = one.exception() if one.done() else OSError("its name is not resolved")
        if isinstance(error, OSError):
            found.append(f"{name} at {members[name]} ({error})")
        elif error is not None:
            raise error
    return found
