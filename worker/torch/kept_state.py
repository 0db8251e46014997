"""PyTorch: the state of a job's workers in a file, while the job is suspended and none of them runs.

It is what a worker sends to one that joins, with the job's position: a checkpoint that needs nothing of the
script.
"""

import pickle
from pathlib import Path
from typing import Any

import torch

from idl.errors import InvalidRequestError
from idl.folders import BEGUN_STATE, KEPT_STATE
from rpc.writing import replacing
from worker.torch.loader import Loader
from worker.torch.training_state import TrainingState


class KeptState:
    """The file of a worker's state, and that with which it begins.

    Args:
        loader: The loader of the job's samples.
        state: The state, but for the job's position.
    """

    def __init__(self, loader: Loader, state: TrainingState) -> None:
        self._loader = loader
        self._state = state
        self._begun: dict[str, Any] | None = None  # until it has been taken

    @property
    def _folder(self) -> Path:
        folder = self._loader.session.config.keep
        if folder is None:
            raise InvalidRequestError("the state cannot be written down: the worker has no --keep")
        return folder

    def find(self) -> None:
        """Begin with the state in the file, if there is one, unless the script has a later checkpoint.

        To be called before the session joins.

        Raises:
            InvalidRequestError: The file cannot be read, or is of another job.
        """
        session = self._loader.session
        if session.config.keep is None or not (file := self._folder / BEGUN_STATE).exists():
            return
        try:
            begun = torch.load(file, map_location="cpu", mmap=True, weights_only=True)
            position = begun["position"]
        except (OSError, RuntimeError, pickle.UnpicklingError, KeyError, TypeError, EOFError) as error:
            raise InvalidRequestError(f"{file} cannot be read, with the job's state: {error}") from error
        own = session.training.resumed
        if own is not None and own.iteration > position["iteration"]:
            session.log.of(__name__).info("%s is of an earlier iteration than the checkpoint", file)
            return
        self._loader.load_state_dict(position)
        self._begun = begun

    def take(self) -> None:
        """Take the state that was found, in place of what the script begins with.

        Raises:
            InvalidRequestError: It is of another model, or has other schedulers.
        """
        if self._begun is not None:
            file = self._folder / BEGUN_STATE
            self._state.take(self._begun["state"], self._begun["tensors"], f"in {file}")

    def forget(self) -> None:
        """Forget the state that was found, as this worker has one by now."""
        self._begun = None

    def write(self) -> None:
        """Write the state, which is on the disk when this returns; called between two batches.

        Raises:
            OSError: It cannot be written.
            InvalidRequestError: The worker has no folder for it.
        """
        file = self._folder / KEPT_STATE
        file.parent.mkdir(parents=True, exist_ok=True)
        text, tensors = self._state.packed()
        saved = {"position": self._loader.state_dict(), "state": text, "tensors": tensors}
        with replacing(file) as stream:
            try:
                torch.save(saved, stream)
            except RuntimeError as error:  # by which PyTorch hides that the disk is full
                if isinstance(error.__context__, OSError):
                    raise error.__context__ from None
                raise
        self._loader.session.log.of(__name__).info("wrote the state to %s", file)
