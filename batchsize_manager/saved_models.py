"""Keeps what predictors and policies have learnt in files, for later runs, other workers and other jobs.

A file holds the models of one job: NumPy's npz format, an array under PREDICTOR/WORKER/ARRAY, each of the
three quoted as in a URL.
"""

import io
import math
import os
import tempfile
import zipfile
from pathlib import Path
from typing import IO
from urllib.parse import quote, unquote

import numpy as np

from predictors import Array, Models

_SUFFIX = ".npz"


def models_file(folder: Path, job: str) -> Path:
    """Where a job's models are kept."""
    return folder / f"{quote(job, safe='')}{_SUFFIX}"


def save_models(path: Path, models: Models) -> None:
    """Write models to a file, which others see whole or not at all, even after a loss of power.

    Raises:
        OSError: It cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as stream:
        try:
            stream.write(pack_models(models))
            stream.flush()
            os.fsync(stream.fileno())
            os.replace(stream.name, path)
        except BaseException:
            os.unlink(stream.name)
            raise


def pack_models(models: Models) -> bytes:
    """Models as the bytes of such a file."""
    arrays = {
        "/".join(quote(part, safe="") for part in (predictor, worker, name)): array
        for predictor, workers in models.items()
        for worker, weights in workers.items()
        for name, array in weights.items()
    }
    packed = io.BytesIO()
    np.savez(packed, allow_pickle=False, **arrays)
    return packed.getvalue()


def unpack_models(packed: bytes) -> Models:
    """The other way; no bytes are no models.

    They may come from anybody: nothing in them is run, and they take no more memory than they are long.

    Raises:
        ValueError: They are not what `pack_models` gives.
    """
    if not packed:
        return {}
    try:
        _check_sizes(packed)
    except (ValueError, EOFError, zipfile.BadZipFile, NotImplementedError, RuntimeError, OSError) as error:
        raise ValueError(f"models that were sent: not a file of saved models ({error})") from error
    return _read(io.BytesIO(packed), "that were sent")


def load_models(path: Path) -> Models:
    """Read a file of models, or all that lie in a folder; of the same worker's, the newest file's.

    Raises:
        ValueError: There is none, or a file is not what `save_models` writes.
    """
    if path.is_dir():
        files = sorted(path.glob(f"*{_SUFFIX}"), key=lambda file: file.stat().st_mtime)
        if not files:
            raise ValueError(f"models {str(path)!r}: no {_SUFFIX} file in this folder")
    else:
        files = [path]
    models: dict[str, dict[str, dict[str, Array]]] = {}
    for file in files:
        for predictor, workers in _read(file, repr(str(file))).items():
            models.setdefault(predictor, {}).update(workers)
    return models


def _check_sizes(packed: bytes) -> None:
    """See that what is packed is as long as it says, before NumPy believes it and makes room."""
    with zipfile.ZipFile(io.BytesIO(packed)) as entries:
        infos = entries.infolist()
        if sum(info.file_size for info in infos) > len(packed):
            raise ValueError("longer than what was sent")
        for info in infos:
            with entries.open(info) as stream:
                if np.lib.format.read_magic(stream) != (1, 0):
                    raise ValueError("another version of NumPy's format")
                shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
            if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize > info.file_size:
                raise ValueError(f"array of shape {shape} in {info.file_size} bytes")


def _read(file: Path | IO[bytes], source: str) -> dict[str, dict[str, dict[str, Array]]]:
    models: dict[str, dict[str, dict[str, Array]]] = {}
    try:
        with np.load(file, allow_pickle=False) as arrays:
            for key in arrays.files:
                predictor, worker, name = (unquote(part) for part in key.split("/"))
                array = np.asarray(arrays[key], dtype=np.float64)
                if not np.isfinite(array).all():
                    raise ValueError(f"array {key!r} is not finite")
                models.setdefault(predictor, {}).setdefault(worker, {})[name] = array
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, AttributeError) as error:
        raise ValueError(f"models {source}: not a file of saved models ({error})") from error
    return models
