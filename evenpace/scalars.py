"""Scalars of a worker's iterations: in TensorBoard, in Weights & Biases, or in a writer of the user's.

One line in a training script, whatever its framework:

    evenpace.scalars.write(evenpace.scalars.TensorBoard("runs/digits"))

Each worker writes its own; figures of the whole job are the manager's.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from evenpace import context
from worker.iteration_times import Scalars
from worker.session import Session

__all__ = ["Logger", "Scalars", "TensorBoard", "write"]


def write(to: Scalars, *, every: int = 1, session: Session | None = None) -> None:
    """Write this worker's scalars from now on; may be called for several writers.

    The names are `evenpace/batch_size`, `evenpace/batch_processing_time`, `evenpace/iteration_time`,
    `evenpace/waiting_share`, `evenpace/speed`, `evenpace/throughput` and, once the noise is known,
    `evenpace/noise_scale`, `evenpace/efficiency` and `evenpace/goodput`; units and meaning are those of
    `worker.iteration_times.IterationTimes.values`.
    A writer that raises an error is logged and used no more.

    Args:
        to: The writer.
        every: Number that divides the iterations to be written.
        session: This worker's session; by default that of this process.

    Raises:
        InvalidRequestError: There is no session, or `every` is less than 1.
    """
    (session or context.session()).meter.add_scalars(to, every)


class TensorBoard:
    """A writer of scalars for TensorBoard.

    Args:
        log_dir: The folder given to `tensorboard --logdir`. All workers may have the same one.
        worker: Worker's name, which names the sub-folder; by default that of this process's session.

    Raises:
        ImportError: TensorBoard is not installed.
        InvalidRequestError: There is no session, and `worker` is not given.
    """

    def __init__(self, log_dir: str | Path, worker: str | None = None) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ImportError(
                f"evenpace.scalars.TensorBoard needs tensorboard ({error}): "
                f"pip install 'evenpace[tensorboard]'"
            ) from error
        name = worker if worker is not None else context.session().config.worker
        self._writer = SummaryWriter(str(Path(log_dir) / _folder_name(name)))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Write the values of an iteration; see `Scalars`."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write all values that are still in memory."""
        self._writer.close()


class TakesLogs(Protocol):
    """The method of Weights & Biases' module and runs that is used here."""

    def log(self, data: dict[str, Any], *, step: int) -> Any:
        """Log values by name."""


class Logger:
    """A writer that passes scalars to a logger such as a run of Weights & Biases.

    Args:
        log: An object with a method `log(values, step=)`, such as `wandb` after `wandb.init()`, or a run.

    Raises:
        TypeError: `log` has no such method.
    """

    def __init__(self, log: TakesLogs) -> None:
        if not callable(getattr(log, "log", None)):
            raise TypeError(f"{log!r} has no method log(values, step=), as Weights & Biases' runs have")
        self._log = log

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Pass the values of an iteration on; see `Scalars`."""
        self._log.log(dict(values), step=step)


def _folder_name(worker: str) -> str:
    """Return a worker's name as a readable folder name that is never a path upwards."""
    return re.sub(r"[^\w.@+-]+|^\.+", "_", worker) or "_"
