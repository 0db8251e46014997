"""Charts of a worker's iterations: in TensorBoard, in Weights & Biases, or wherever a user wants them.

One line in a training script, whatever its framework:

    evenpace.scalars.write(evenpace.scalars.TensorBoard("runs/digits"))

Each worker writes its own; what concerns all workers is for the manager to tell.
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
    """Have this worker's scalars written from now on; may be called for several writers.

    The names are `evenpace/batch_size`, `evenpace/batch_processing_time`, `evenpace/iteration_time`,
    `evenpace/waiting_share`, `evenpace/speed` and `evenpace/throughput`; units and meaning are those of
    `worker.iteration_times.IterationTimes.values`. A writer that raises an error is logged and used no more.

    Args:
        to: The writer.
        every: Only iterations that this divides.
        session: This worker's; by default that of this process.

    Raises:
        InvalidRequestError: There is no session, or `every` is less than 1.
    """
    (session or context.session()).add_scalars(to, every)


class TensorBoard:
    """Writes scalars as TensorBoard reads them.

    Args:
        log_dir: What `tensorboard --logdir` is given. All workers may have the same one.
        worker: In whose sub-folder; by default that of this process's session.

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
        """See `Scalars`."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write what is still to be written."""
        self._writer.close()


class TakesLogs(Protocol):
    """What Weights & Biases' module and its runs have, among others."""

    def log(self, data: dict[str, Any], *, step: int) -> Any:
        """Take values by name."""


class Logger:
    """Hands scalars to a logger such as Weights & Biases' run.

    Args:
        log: With `log(values, step=)`; such as `wandb`, after `wandb.init()`, or the run that this gives.

    Raises:
        TypeError: It has no such method.
    """

    def __init__(self, log: TakesLogs) -> None:
        if not callable(getattr(log, "log", None)):
            raise TypeError(f"{log!r} has no method log(values, step=), as Weights & Biases' runs have")
        self._log = log

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """See `Scalars`."""
        self._log.log(dict(values), step=step)


def _folder_name(worker: str) -> str:
    """Of one part, readable, and never a way up."""
    return re.sub(r"[^\w.@+-]+|^\.+", "_", worker) or "_"
