"""The end of a process group of torch.distributed, whose threads must not outlive the interpreter.

A thread of gloo's that is held up after a reduction still holds an object of Python's; if it lets that go
while the interpreter ends, the process is aborted. The threads are joined once nothing holds the group.
"""

import gc
from pathlib import Path

# Before a group is made, since its functions hold the one that they find when they are imported.
import torch.distributed.nn  # noqa: F401
from torch import distributed


def end_process_group() -> None:
    """Take the default process group down, and see that its threads have ended.

    Raises:
        RuntimeError: Something holds the group still, such as a DistributedDataParallel.
    """
    distributed.barrier()
    gc.collect()
    distributed.destroy_process_group()
    threads = [thread.read_text().strip() for thread in Path("/proc/self/task").glob("*/comm")]
    if any("gloo" in thread for thread in threads):
        raise RuntimeError(f"something holds the process group: threads {threads} are left")
