"""PyTorch: gloo's groups, which their members connect in a thread that can be left behind.

gloo tries five times to reach a member that has died, each time for as long as the group's time-out, and
nothing ends that. A group that is not waited for any more ends by itself, and is dropped.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

from torch.distributed import distributed_c10d as c10d

from worker.daemon_thread import Apart


class _Apart(type):
    """A class in place of gloo's: it makes gloo's instances in another thread, and counts them as its own."""

    gloo: Any
    apart: Apart

    def __call__(cls, *arguments: Any, **options: Any) -> Any:
        return cls.apart(cls.gloo, *arguments, **options)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls.gloo)


@contextlib.contextmanager
def connected_apart(apart: Apart) -> Iterator[None]:
    """Let PyTorch make gloo's groups, within a `with` block, in threads of their own.

    Only their making is in such a thread; PyTorch takes note of a group in the caller's.

    Args:
        apart: Calls what makes a group.
    """
    gloo = c10d.ProcessGroupGloo
    c10d.ProcessGroupGloo = _Apart("ProcessGroupGloo", (), {"gloo": gloo, "apart": staticmethod(apart)})  # type: ignore[misc,assignment,arg-type]
    try:
        yield
    finally:
        c10d.ProcessGroupGloo = gloo  # type: ignore[misc]
