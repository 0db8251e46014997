"""The tie of a process to its parent process."""

import ctypes
import os
import signal
import sys

from idl.errors import UnavailableError

_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int, by: signal.Signals = signal.SIGTERM) -> None:
    """Let the kernel send this process a signal when its parent ends in any way (Linux).

    Args:
        parent: The parent's process id, as the parent knows it.

    Raises:
        UnavailableError: The parent has ended already.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, by)
    if os.getppid() != parent:
        raise UnavailableError(f"the process {parent} that started this one has ended")
