"""PyTorch: NCCL's operations, as those of a group that survives its members; it is broken by aborting NCCL.

An operation of NCCL's is done by the device, later than the call for it returns. So the host waits for those
of a batch before its step, else it would not know whether the gradient that it steps with was reduced. An
abort ends the operations under way on the device without an error, and leaves anything in their tensors.
"""

import os
import threading
import time
from collections.abc import Callable, Sequence
from socket import socket
from typing import Any

from idl.errors import InvalidRequestError
from worker.torch.group_internals import DebugLevel, get_debug_level
from worker.torch.survivable_group import ended, shut

_POLL_SECONDS = 0.0002
_ABORT_SECONDS = 30.0  # in which NCCL ends its operations

# NCCL's threads in PyTorch would end the process where an operation has failed, or where it was frozen for
# long; a failed one would hold others up for a minute. The last has it take aborts while a group is formed.
_SETTINGS = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_DESYNC_DEBUG": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "0",
    "TORCH_NCCL_BLOCKING_WAIT": "0",
    "TORCH_NCCL_USE_COMM_NONBLOCKING": "1",
}


def keep_alive() -> None:
    """Have NCCL's groups that are formed from now on not end this process, whatever torchrun has set.

    Raises:
        InvalidRequestError: A level of debugging is set with which they would nevertheless.
    """
    if get_debug_level() == DebugLevel.DETAIL:
        raise InvalidRequestError(
            "TORCH_DISTRIBUTED_DEBUG DETAIL: with NCCL it has a process end where another one has gone; INFO "
            "and OFF are allowed for groups that the manager has formed"
        )
    os.environ.update(_SETTINGS)


class AbortableCarrier:
    """Carries a group's operations by a backend that can be aborted, as NCCL; see `Carrier`.

    Operations end in the order in which they were begun.

    Args:
        abort: Aborts the backend: operations under way end, later ones raise RuntimeError. Called once, in a
            thread of its own, since it may take long.
        connections: Duplicates of connections by which the group's members meet beside it.
    """

    def __init__(self, abort: Callable[[], None], connections: Sequence[socket]) -> None:
        # Why operations cannot be completed any more, in words; None while they can.
        self.broken: str | None = None
        self._abort = abort
        self._connections = connections
        self._lock = threading.Lock()
        self._unsettled = False  # an operation was begun, and it is not known that it has ended well
        self._last: Any = None  # the last one's work
        self._aborting: threading.Thread | None = None

    def run(self, begin: Callable[[], Any], result: Any) -> Any:
        """Begin an operation; once the group is broken, return one that has ended."""
        with self._lock:
            if self._aborting is not None:
                self._break("another attempt has begun")
            self._unsettled = True
        if self.broken is None:
            try:
                self._last = begin()  # not under the lock: an abort may have to end it
            except RuntimeError as error:
                self._break(str(error))
            else:
                return self._last
        return ended(result)

    def settle(self) -> str | None:
        """Wait until the device has done the operations, or the group is broken; return why it is."""
        work = self._last
        while self.broken is None and work is not None and not work.is_completed():
            time.sleep(_POLL_SECONDS)
        if self.broken is None and work is not None:
            try:
                work.wait()  # for nothing, as it has ended: but that may have been by an error
            except RuntimeError as error:
                self._break(str(error))
        with self._lock:
            if self.broken is None:
                self._unsettled, self._last = False, None
            return self.broken

    def cut(self) -> None:
        """Abort; the group is broken unless all of its operations are known to have ended well."""
        shut(self._connections)
        with self._lock:
            if self._unsettled:
                # Before the abort, which ends them as if all were well.
                self._break("another attempt has begun")
            if self._aborting is None:
                self._aborting = threading.Thread(target=self._abort, name="evenpace-abort", daemon=True)
                self._aborting.start()

    def close(self) -> bool:
        """Abort, and return whether all has ended, so that the backend may be destroyed."""
        self.cut()
        assert self._aborting is not None
        self._aborting.join(_ABORT_SECONDS)
        for connection in self._connections:
            connection.close()
        return not self._aborting.is_alive()

    def _break(self, why: str) -> None:
        self.broken = self.broken or why
