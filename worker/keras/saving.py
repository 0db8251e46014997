"""Keras's ordinary checkpoints, with the place in the job beside the model.

A file that is written here is a `.keras` file like any other: Keras alone can load it and train on.
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
    """Write a model, its optimiser's state, and where the job stands; between two iterations.

    One worker is enough, and several do no harm. The file is there as a whole or not at all.

    Args:
        model: Compiled with the optimiser that was distributed.
        loader: Of the training data.
        path: Of the file, which ends in ".keras".

    Raises:
        InvalidRequestError: The name or the model is another, or this worker is not in a running job.
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
    """Read what `save` has written, and go on with the job from there; to be followed by `distribute`.

    Args:
        path: Of the file.
        loader: Of the training data; its job must not have begun.
        custom_objects: By name, as `keras.models.load_model` takes them.
        compile: Whether to compile the model, likewise.
        safe_mode: Whether to refuse code in the file, likewise.

    Returns:
        The model, compiled as it was.

    Raises:
        InvalidRequestError: The file is not of this job, or of none.
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
    """Saves the model and the job at the end of each of `fit`'s epochs; see `save`.

    Args:
        path: Of the file, which each epoch writes anew.
        loader: Of the training data.
    """

    def __init__(self, path: str | Path, loader: DataLoader) -> None:
        super().__init__()
        self._path = path
        self._loader = loader

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """See `keras.callbacks.Callback`."""
        save(self.model, self._loader, self._path)
