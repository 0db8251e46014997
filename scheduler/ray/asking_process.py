"""A process that asks a shared cluster's scheduler for another one, which goes on whatever becomes of Ray.

Ray ends a process whose cluster has been lost for a minute. This one is connected to the cluster, is started
again where it has ended, and connects again where the cluster is another one.
"""

import contextlib
import multiprocessing
import signal
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Self

from idl.errors import EvenpaceError, UnavailableError
from scheduler.cluster.history import Line

_ANSWER_SECONDS = 60.0  # to connect to a cluster, and ask


class AskingProcess:
    """The scheduler as a process of its own asks it; a context manager. To be used by one thread at a time.

    Args:
        address: The cluster's address as Ray writes it, such as HOST:PORT or "auto".
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._end()

    def status(self) -> dict[str, Any]:
        """Return how the cluster is shared, as JSON can hold it.

        Raises:
            UnavailableError: The cluster cannot be reached, has no scheduler, or this does not answer.
        """
        return self._ask("status")  # type: ignore[no-any-return]

    def record(self) -> list[Line]:
        """Return the record of who had what, the oldest line first (UnavailableError: as above)."""
        return self._ask("record")  # type: ignore[no-any-return]

    def _ask(self, method: str) -> Any:
        try:
            if self._pipe is None:
                self._pipe = self._start()
            self._pipe.send(method)
            if not self._pipe.poll(_ANSWER_SECONDS):
                raise TimeoutError
            answer, error = self._pipe.recv()
        except (EOFError, OSError) as broken:
            self._end()
            raise UnavailableError(
                f"the cluster's scheduler has not answered for {_ANSWER_SECONDS:g} s"
                if isinstance(broken, TimeoutError)
                else "the process that is connected to the Ray cluster has ended; another one is started"
            ) from broken
        if error is not None:
            raise UnavailableError(error)
        return answer

    def _start(self) -> Connection:
        context = multiprocessing.get_context("spawn")  # a fork would share sockets and threads' locks
        ours, theirs = context.Pipe()
        self._process = context.Process(target=_answer, args=(theirs, self._address), daemon=True)
        self._process.start()
        theirs.close()
        return ours

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
        if self._pipe is not None:
            self._pipe.close()
        self._process = self._pipe = None


def _answer(pipe: Connection, address: str) -> None:
    """Run in the process: answer requests with a value and no error, or none and one, until the pipe ends."""
    from scheduler.ray import cluster

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the terminal is for the other process
    with contextlib.suppress(EOFError, OSError):
        while True:
            method = pipe.recv()
            try:
                with cluster.connection(address):
                    while True:
                        pipe.send(_asked(method))
                        method = pipe.recv()
            except EvenpaceError as error:  # another connection may be needed
                pipe.send((None, str(error)))


def _asked(method: str) -> tuple[Any, str | None]:
    from scheduler.ray import cluster_scheduler

    try:
        scheduler = cluster_scheduler.find()
    except UnavailableError as error:  # the connection is well
        return None, str(error)
    return scheduler.ask(method), None
