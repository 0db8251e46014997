"""A call in a thread that does not keep the process from ending, as where a script fails meanwhile."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Apart(Protocol):
    """A function that calls another one in a thread of its own, and returns what that returns."""

    def __call__(self, function: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
        """Call a function; raise its error, or one with which the call is left behind."""
        ...


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
