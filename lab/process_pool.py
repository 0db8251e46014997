"""A pool of processes that end with their parent, and at once when it is interrupted."""

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor

from worker.parent import end_with_parent


@contextlib.contextmanager
def process_pool(number: int) -> Iterator[Executor]:
    """Yield an executor of up to `number` processes; an error, such as Ctrl-C, ends them at once."""
    context = multiprocessing.get_context("spawn")
    others = set(multiprocessing.active_children())
    with ProcessPoolExecutor(number, context, initializer=_begin, initargs=(os.getpid(),)) as executor:
        try:
            yield executor
        except BaseException:
            # The executor would wait until the calls that run now have ended.
            executor.shutdown(wait=False, cancel_futures=True)
            for child in set(multiprocessing.active_children()) - others:
                child.terminate()
            raise


def _begin(parent: int) -> None:
    end_with_parent(parent)
    # Ctrl-C goes to all processes. Here it just ends this one, SIGTERM likewise.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
