"""What a training function calls on a worker of a Ray cluster: `report` and `get_checkpoint`.

Reports and checkpoints lie in the job's folder, on a disk that all nodes share. This module needs no Ray.
"""

import contextlib
import inspect
import json
import os
import pickle
import shutil
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from idl.errors import InvalidRequestError
from rpc.writing import writing

FOLDER_VARIABLE, WORKER_VARIABLE = "EVENPACE_RAY_FOLDER", "EVENPACE_RAY_WORKER"
"""Variables of a worker: the job's folder, and the worker's name."""

SCRIPT_FILE, LOOP_FILE = "train.py", "train_loop.pickle"
SCRIPT = "from scheduler.ray.training import run_loop\n\nrun_loop()\n"
"""The script of a worker that calls a training function, which lies beside it."""

_REPORTS, _CHECKPOINTS = "reports", "checkpoints"
_CHECKPOINT = "checkpoint_{:06d}"


@dataclass(frozen=True)
class Checkpoint:
    """A folder of files from which training can go on.

    Attributes:
        path: The folder.
    """

    path: Path

    @classmethod
    def from_directory(cls, path: str | Path) -> Self:
        """Make a checkpoint of a folder.

        Raises:
            InvalidRequestError: There is no such folder.
        """
        if not Path(path).is_dir():
            raise InvalidRequestError(f"checkpoint {str(path)!r}: no such folder")
        return cls(Path(path))

    @contextlib.contextmanager
    def as_directory(self) -> Iterator[str]:
        """Yield the folder's path."""
        yield str(self.path)

    def to_directory(self, path: str | Path) -> str:
        """Copy the files into another folder, and return its path."""
        return str(shutil.copytree(self.path, path, dirs_exist_ok=True))


def report(metrics: Mapping[str, Any], checkpoint: Checkpoint | None = None) -> None:
    """Report metrics, and keep a checkpoint in the job's folder.

    Args:
        metrics: Values by name, which JSON can hold.
        checkpoint: Files to be kept; its folder may be removed afterwards. Of several workers, give it on
            one: with a parameter server, all have the same parameters.

    Raises:
        InvalidRequestError: This process is not a worker on a Ray cluster, or JSON cannot hold a value.
    """
    folder, worker = _job_folder(), os.environ[WORKER_VARIABLE]
    try:
        json.dumps(metrics)
    except (TypeError, ValueError) as error:
        raise InvalidRequestError(f"metrics {metrics!r}: {error}") from error
    kept = str(_keep(folder / _CHECKPOINTS, checkpoint)) if checkpoint is not None else None
    line = json.dumps({"worker": worker, "time": time.time(), "metrics": metrics, "checkpoint": kept})
    (folder / _REPORTS).mkdir(parents=True, exist_ok=True)
    reports = folder / _REPORTS / f"{worker}.jsonl"
    with writing(reports), reports.open("a") as stream:
        stream.write(f"\n{line}\n")  # the last line may have no end, if this worker was killed before


def get_checkpoint() -> Checkpoint | None:
    """Return the job's last checkpoint; None where there is none yet.

    Raises:
        InvalidRequestError: This process is not a worker on a Ray cluster.
    """
    kept = sorted((_job_folder() / _CHECKPOINTS).glob("checkpoint_*"))
    return Checkpoint(kept[-1]) if kept else None


def read_reports(folder: Path) -> list[dict[str, Any]]:
    """Return the reports, oldest first: worker, time, metrics and checkpoint of each."""
    reports = []
    for file in (folder / _REPORTS).glob("*.jsonl"):
        for line in file.read_text().splitlines():
            # An empty one, or its worker was killed while it wrote.
            with contextlib.suppress(json.JSONDecodeError):
                reports.append(json.loads(line))
    return sorted(reports, key=lambda report: float(report["time"]))


def run_loop() -> None:
    """Call the training function that lies beside the script of this process."""
    loop, config = pickle.loads((Path(sys.argv[0]).parent / LOOP_FILE).read_bytes())
    if inspect.signature(loop).parameters:
        loop(config if config is not None else {})
    else:
        loop()


def _job_folder() -> Path:
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder is None:
        raise InvalidRequestError("this process is not a worker on a Ray cluster: see evenpace.ray.Trainer")
    return Path(folder)


def _keep(folder: Path, checkpoint: Checkpoint) -> Path:
    """Copy a checkpoint's files into a new folder in one step, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    new = folder / f".{uuid.uuid4().hex}"
    shutil.copytree(checkpoint.path, new)
    taken = (kept.name.removeprefix("checkpoint_") for kept in folder.glob("checkpoint_*"))
    number = max(map(int, taken), default=-1) + 1  # the user may have removed old ones
    while True:
        kept = folder / _CHECKPOINT.format(number)
        try:
            return new.rename(kept)
        except OSError:  # another worker has taken the number
            if not kept.exists():
                raise
        number += 1
