"""The end of a process group of torch.distributed, whose threads must not outlive the interpreter.

A thread of gloo's that is held up after a reduction still holds an object of Python's; if it lets that go
while the interpreter ends, the process is aborted. The threads are joined once nothing holds the group.
"""

import contextlib
import gc
import time
from pathlib import Path

# Before a group is made, since its functions hold the one that they find when they are imported.
import torch.distributed.nn  # noqa: F401
from torch import distributed

_SECONDS = 10.0  # for threads to end


def end_process_group() -> None:
    """Take the default process group down, and see that its threads have ended.

    Raises:
        RuntimeError: Something holds the group still, such as a DistributedDataParallel.
    """
    distributed.barrier()
    gc.collect()
    distributed.destroy_process_group()
    deadline = time.monotonic() + _SECONDS
    while any("gloo" in name for name in _threads()):
        if time.monotonic() > deadline:
            raise RuntimeError(f"something holds the process group: threads {_threads()} are left")
        time.sleep(0.01)  # one of its own may be about to let it go


def _threads() -> list[str]:
    """Return the names of this process's threads."""
    names = []
    for thread in Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            names.append(thread.read_text().strip())
    return names
