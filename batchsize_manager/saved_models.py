"""Keeps what predictors have learnt in files, for later runs, other workers and other jobs.

A file holds the models of one job: NumPy's npz format, an array under PREDICTOR/WORKER/ARRAY, each of the
three quoted as in a URL.
"""

import os
import tempfile
import zipfile
from pathlib import Path
from urllib.parse import quote, unquote

import numpy as np

from predictors import Array, Models

_SUFFIX = ".npz"


def models_file(folder: Path, job: str) -> Path:
    """Where a job's models are kept."""
    return folder / f"{quote(job, safe='')}{_SUFFIX}"


def save_models(path: Path, models: Models) -> None:
    """Write models to a file, which others see whole or not at all.

    Raises:
        OSError: It cannot be written.
    """
    arrays = {
        "/".join(quote(part, safe="") for part in (predictor, worker, name)): array
        for predictor, workers in models.items()
        for worker, weights in workers.items()
        for name, array in weights.items()
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as stream:
        try:
            np.savez(stream, allow_pickle=False, **arrays)
            os.replace(stream.name, path)
        except BaseException:
            os.unlink(stream.name)
            raise


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
        for predictor, workers in _load(file).items():
            models.setdefault(predictor, {}).update(workers)
    return models


def _load(file: Path) -> dict[str, dict[str, dict[str, Array]]]:
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
        raise ValueError(f"models {str(file)!r}: not a file of saved models ({error})") from error
    return models
