"""A process that asks a shared cluster's scheduler for another one, which goes on whatever becomes of Ray.

Ray ends a process whose cluster has been lost for a minute. This one alone is connected to the cluster, and
there is another one where it has ended.
"""

import contextlib
import multiprocessing
import signal
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Self

from idl.errors import EvenpaceError, UnauthorisedError, UnavailableError
from scheduler.cluster.history import Line

_ANSWER_SECONDS = 60.0  # to connect to a cluster, and ask


class AskingProcess:
    """The scheduler as a process of its own asks it; a context manager, which one thread at a time may ask.

    Args:
        address: The cluster's address as Ray writes it, such as HOST:PORT or "auto".
        token: What each call shows; empty for none.
    """

    def __init__(self, address: str, token: str = "") -> None:
        self._address = address
        self._token = token
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None
        self._over = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._over = True
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
            answer, error = self._exchange(method)
        except (EOFError, OSError) as broken:
            self._end()
            raise UnavailableError(
                f"the cluster's scheduler has not answered for {_ANSWER_SECONDS:g} s"
                if isinstance(broken, TimeoutError)
                else "the process that is connected to the Ray cluster has ended"
            ) from broken
        if error is not None:
            raise UnavailableError(error)
        return answer

    def _exchange(self, method: str) -> tuple[Any, str | None]:
        """Have the process answer, or another one where it has ended.

        Raises:
            TimeoutError: It does not answer.
            EOFError, ConnectionError: The other one has ended, too.
        """
        if self._pipe is not None:
            try:
                return _answered(self._pipe, method)
            except (EOFError, ConnectionError):
                self._end()
                if self._over:
                    raise
        context = multiprocessing.get_context("spawn")  # a fork would share sockets and threads' locks
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_answer, args=(theirs, self._address, self._token), daemon=True
        )
        self._process.start()
        theirs.close()
        return _answered(self._pipe, method)

    def _end(self) -> None:
        process, pipe, self._process, self._pipe = self._process, self._pipe, None, None
        if process is not None:
            process.kill()
            process.join()
        if pipe is not None:
            pipe.close()


def _answered(pipe: Connection, method: str) -> tuple[Any, str | None]:
    """Return the answer of the process at the other end: a value and no error, or none and one."""
    pipe.send(method)
    if not pipe.poll(_ANSWER_SECONDS):
        raise TimeoutError
    answer: tuple[Any, str | None] = pipe.recv()
    return answer


def _answer(pipe: Connection, address: str, token: str) -> None:
    """Run in the process: answer requests, until the pipe ends, or Ray has been used and failed.

    In a process, Ray can be used once: it keeps the first cluster's token.
    """
    from scheduler.ray import cluster

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the terminal is for the other process
    with contextlib.suppress(EOFError, OSError):
        while True:
            method = pipe.recv()
            try:
                with cluster.connection(address):
                    _answer_connected(pipe, method, token)
                return
            except UnavailableError as error:
                pipe.send((None, str(error)))
                if not isinstance(error.__cause__, OSError):  # something listens there
                    return


def _answer_connected(pipe: Connection, method: str, token: str) -> None:
    """Answer requests, this one first, until there is no answer of the cluster's."""
    from scheduler.ray import cluster_scheduler

    while True:
        try:
            scheduler = cluster_scheduler.find(token)
        except UnavailableError as error:  # the cluster answers
            pipe.send((None, str(error)))
        else:
            try:
                pipe.send((scheduler.ask(method), None))
            except UnauthorisedError as error:  # the scheduler answers
                pipe.send((None, str(error)))
            except EvenpaceError as error:
                pipe.send((None, str(error)))
                return
        method = pipe.recv()
