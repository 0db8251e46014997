"""Keras's ordinary checkpoints, with the job's position beside the model.

The file is an ordinary `.keras` file, which Keras alone can load, too.
"""

import base64
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras

from idl.errors import InvalidRequestError
from worker.keras.loader import DataLoader

_MEMBER = "evenpace.json"  # of the zip file that a .keras file is


def save(model: keras.Model, loader: DataLoader, path: str | Path) -> None:
    """Write a model, its optimiser's state, and the job's position, between two iterations.

    One worker has to call it, and several may. The file is replaced atomically.

    Args:
        model: The model, compiled with the optimiser that was distributed.
        loader: The loader of the training data.
        path: The file's path, which ends in ".keras".

    Raises:
        InvalidRequestError: The path does not end in ".keras", the model is not compiled, or this worker is
            not in a running job.
    """
    path = Path(path)
    if path.suffix != ".keras":
        raise InvalidRequestError(f"checkpoint {str(path)!r}: its name must end in .keras")
    if not model.compiled:
        raise InvalidRequestError(
            "the model would be saved without its optimiser: call model.compile(optimizer)"
        )
    state = loader.state_dict()
    state["learned"] = base64.b64encode(state["learned"]).decode()
    written = path.with_name(f"{path.stem}-{loader.session.incarnation}.keras")
    try:
        model.save(written)
        with zipfile.ZipFile(written, "a") as file:
            file.writestr(_MEMBER, json.dumps(state))
        written.replace(path)
    finally:
        written.unlink(missing_ok=True)


def load(
    path: str | Path,
    loader: DataLoader,
    custom_objects: Mapping[str, Any] | None = None,
    compile: bool = True,  # noqa: A002 - Keras's name
    safe_mode: bool = True,
) -> Any:
    """Load a model that `save` has written, and resume the job; to be followed by `distribute`.

    Args:
        path: The file's path.
        loader: The loader of the training data; its job must not have begun.
        custom_objects: Objects by name, as for `keras.models.load_model`.
        compile: Whether to compile the model, likewise.
        safe_mode: Whether to refuse code in the file, likewise.

    Returns:
        The model, compiled as it was.

    Raises:
        InvalidRequestError: The file is of another job, or of none.
    """
    with zipfile.ZipFile(path) as file:
        if _MEMBER not in file.namelist():
            raise InvalidRequestError(
                f"checkpoint {str(path)!r}: it has a model, but no job; use keras.models.load_model"
            )
        state = json.loads(file.read(_MEMBER))
    state["learned"] = base64.b64decode(state["learned"])
    loader.load_state_dict(state)
    return keras.models.load_model(path, custom_objects, compile, safe_mode)


class Checkpoint(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """A callback that saves the model and the job's position after each of `fit`'s epochs; see `save`.

    Args:
        path: The file's path; each epoch replaces the file.
        loader: The loader of the training data.
    """

    def __init__(self, path: str | Path, loader: DataLoader) -> None:
        super().__init__()
        self._path = path
        self._loader = loader

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Save the model and the job's position."""
        save(self.model, self._loader, self._path)
