"""PyTorch: gloo's groups, which their members connect in a thread that can be left behind.

gloo tries five times to reach a member that has died, each time for as long as the group's time-out, and
nothing ends that. A group that is not waited for any more ends by itself, and is dropped.
"""

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

from torch.distributed import distributed_c10d as c10d

from worker.daemon_thread import in_daemon

Wait = Callable[["Future[Any]"], None]


class _Apart(type):
    """A class in place of gloo's: it makes gloo's instances in another thread, and counts them as its own."""

    gloo: Any
    wait: Wait

    def __call__(cls, *arguments: Any, **options: Any) -> Any:
        made = in_daemon(cls.gloo, *arguments, **options)
        cls.wait(made)
        return made.result()

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls.gloo)


@contextlib.contextmanager
def connected_apart(wait: Wait) -> Iterator[None]:
    """Let PyTorch make gloo's groups, within a `with` block, in threads of their own.

    Only their making is in such a thread; PyTorch takes note of a group in the caller's.

    Args:
        wait: Called with the group's future in the caller's thread. It returns once that is done, or raises
            an error with which the group is given up.
    """
    gloo = c10d.ProcessGroupGloo
    c10d.ProcessGroupGloo = _Apart("ProcessGroupGloo", (), {"gloo": gloo, "wait": staticmethod(wait)})  # type: ignore[misc,assignment]
    try:
        yield
    finally:
        c10d.ProcessGroupGloo = gloo  # type: ignore[misc]
