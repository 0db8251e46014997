"""A call in a thread that does not keep the process from ending, as where a script fails meanwhile."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def in_daemon(function: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> "Future[T]":
    """Call a function in a thread of its own, and return its result once there is one."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(function(*arguments, **options))
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is asked for
            future.set_exception(error)

    threading.Thread(target=run, name="evenpace-daemon", daemon=True).start()
    return future
