"""FSDP2: the end of a rank once another one is gone, and with it a shard of the parameters.

A rank alone cannot go on then, nor save what it has. What it waits for in a collective operation would end by
the process group's time-out only, half an hour later.
"""

import gc
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType

from idl.errors import CANNOT_GO_ON, EvenpaceError, InvalidRequestError
from worker.exchanges.all_reduce import AllReduce
from worker.session import Session

_UNMOVED_SECONDS = 1.0  # for which the training thread must stand still within a collective operation
_COLLECTIVE = ("torch.distributed.distributed_c10d", "torch.distributed.fsdp", "torch.autograd.graph")
GO_ON = (
    "a shard of the parameters is gone with its rank, so that this one cannot go on: start the job again, "
    "and it goes on from the script's checkpoint"
)


def end_with_lost_shards(session: Session, exchange: AllReduce) -> None:
    """Have this process end, with a line that says why, when a rank of a model in FSDP2 is gone.

    - Where the manager says that the job cannot go on, and the main thread stays in a collective operation
      for a second, the process ends with status 1.
    - Where a collective operation raises an error that ends the process, or a call of the manager, since the
      job cannot go on, the line follows the traceback.

    Nothing changes for other models, whose ranks have all parameters.

    Args:
        exchange: Its exchange, of a process group that is fixed.
    """

    def end(error: EvenpaceError) -> None:
        arguments = (session, str(error))
        threading.Thread(target=end_once_stuck, args=arguments, name="evenpace-end", daemon=True).start()

    exchange.on_abandoned = end
    earlier = sys.excepthook

    def say(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        earlier(kind, error, traceback)
        if isinstance(error, RuntimeError) and _raised_by_collective(traceback) and _has_shards():
            why = "a collective operation has failed: if a rank has died, "
        elif isinstance(error, InvalidRequestError) and str(error).startswith(CANNOT_GO_ON) and _has_shards():
            why = f"{error}; "
        else:
            return
        session.log.of(__name__).error("%s%s", why, GO_ON)

    sys.excepthook = say


def end_once_stuck(session: Session, why: str, is_over: Callable[[], bool] = lambda: False) -> None:
    """End the process once its main thread waits in a collective operation.

    Args:
        why: The reason, for the log.
        is_over: Returns whether it is to go on after all; then this returns.
    """
    thread = threading.main_thread().ident
    assert thread is not None
    last, since = None, time.monotonic()
    while not is_over():
        frame = sys._current_frames().get(thread)
        if frame is None:
            return
        now = (id(frame), frame.f_lasti)
        if now != last:
            last, since = now, time.monotonic()
        waits, unmoved = _is_collective(frame), time.monotonic() - since
        del frame
        if waits and unmoved >= _UNMOVED_SECONDS and _has_shards():
            session.log.of(__name__).error("%s; %s", why, GO_ON)
            logging.shutdown()
            os._exit(1)
        time.sleep(_UNMOVED_SECONDS / 10)


def _is_collective(frame: FrameType) -> bool:
    """Return whether a frame is of a function that waits for other ranks; a thread's innermost one is."""
    return str(frame.f_globals.get("__name__", "")).startswith(_COLLECTIVE)


def _raised_by_collective(traceback: TracebackType | None) -> bool:
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    return traceback is not None and _is_collective(traceback.tb_frame)


def _has_shards() -> bool:
    """Return whether this process has a module in FSDP2."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and any(isinstance(one, fsdp.FSDPModule) for one in gc.get_objects())
