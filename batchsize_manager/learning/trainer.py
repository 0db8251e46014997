"""A process that runs predictors' fits, so that no barrier round waits for them.

It knows neither jobs nor predictors: a fit is sent over, weights come back.
"""

import asyncio
import contextlib
import logging
import multiprocessing
import os
import pickle
import signal
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from types import MappingProxyType

from batchsize_manager.counters import LearningTally
from predictors import Fit, Weights

log = logging.getLogger(__name__)

_FIT_SECONDS = 600.0
_NICENESS = 10  # all others that share the machine's CPUs come first


class Trainer:
    """One process, started when it is first needed, that runs one fit after the other.

    It ends with the process that made it, at the latest when its present fit is done. All methods are for
    the event loop's thread.

    Args:
        tally: The counts that fits are added to; None: they are not counted.
    """

    def __init__(self, tally: LearningTally | None = None) -> None:
        self._tally = tally or LearningTally()
        self._thread = ThreadPoolExecutor(1, "trainer")  # waits for the process in place of the event loop
        self._process: BaseProcess | None = None
        self._connection: Connection | None = None
        self._closed = False

    def submit(
        self,
        fit: Fit,
        done: Callable[[Weights | None], None],
        log_fields: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        """Run a fit once the fits before it are done.

        Args:
            fit: The fit, which is sent to the process by pickle.
            done: Function that is called in the event loop with the weights, or None if the fit failed; not
                after `close`.
        """
        future = asyncio.get_running_loop().run_in_executor(self._thread, self._run, fit)

        def end(ended: "asyncio.Future[Weights]") -> None:
            if self._closed:
                ended.cancelled() or ended.exception()  # retrieved, or asyncio would log it
            else:
                weights = _weights(ended, log_fields)
                self._tally.failed_fits += weights is None
                done(weights)

        future.add_done_callback(end)

    def close(self) -> None:
        """Stop at once; a running fit is lost."""
        self._closed = True
        if self._process is not None:
            self._process.kill()
        self._thread.shutdown(wait=True, cancel_futures=True)
        if self._process is not None:
            self._process.join()
        if self._connection is not None:
            self._connection.close()

    def _run(self, fit: Fit) -> Weights:
        """Have the process run a fit, in the waiting thread."""
        if self._process is None or not self._process.is_alive():
            self._start()
        assert self._connection is not None
        began = time.perf_counter()
        try:
            _send(self._connection, fit)
            if not self._connection.poll(_FIT_SECONDS):
                raise TimeoutError(f"the training process has not answered for {_FIT_SECONDS:g} s")
            weights = self._connection.recv()
        except (EOFError, OSError) as error:
            assert self._process is not None
            self._process.kill()
            self._process.join()  # its pipe may end before it does: the next fit is not for it
            raise RuntimeError(str(error) or "the training process has died") from error
        if isinstance(weights, str):
            raise RuntimeError(weights)
        self._tally.fits.add(time.perf_counter() - began)
        return weights  # type: ignore[no-any-return]

    def _start(self) -> None:
        if self._connection is not None:
            self._connection.close()
        context = multiprocessing.get_context("spawn")  # a fork would share the loop and its sockets
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_train, args=(theirs,), name="trainer", daemon=True)
        self._process.start()
        theirs.close()
        if self._closed:
            self._process.kill()


def _weights(ended: "asyncio.Future[Weights]", log_fields: Mapping[str, object]) -> Weights | None:
    if ended.cancelled():
        return None
    error = ended.exception()
    if error is not None:
        log.warning("fitting the predictor failed, its last state stays in use: %s", error, extra=log_fields)
        return None
    return ended.result()


def _train(connection: Connection) -> None:
    """Run in the process: receive fits, send weights or the reason of a failure, until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in the terminal is for the manager
    os.nice(_NICENESS)
    with contextlib.suppress(EOFError, OSError):
        while True:
            fit = _receive(connection)
            try:
                answer: Weights | str = fit.run()
            except Exception as error:  # noqa: BLE001 - whatever it is, the manager goes on without it
                answer = f"{type(error).__name__}: {error}"
            connection.send(answer)


def _send(connection: Connection, fit: Fit) -> None:
    """Send a fit, and its arrays without copying them, which would keep this process from barrier rounds."""
    arrays: list[pickle.PickleBuffer] = []
    message = pickle.dumps(fit, protocol=5, buffer_callback=arrays.append)
    connection.send((message, len(arrays)))
    for array in arrays:
        connection.send_bytes(array.raw())


def _receive(connection: Connection) -> Fit:
    message, count = connection.recv()
    arrays = [bytearray(connection.recv_bytes()) for _ in range(count)]
    fit: Fit = pickle.loads(message, buffers=arrays)
    return fit
