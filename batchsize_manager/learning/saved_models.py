"""Files of fitted models, for later runs, other workers and other jobs.

A file holds the models of one job: NumPy's npz format, an array under PREDICTOR/GROUP/ARRAY, each of the
three quoted as in a URL. A group has the workers whose arrays have the same shapes, stacked: (workers, ...).
Their names are under PREDICTOR/GROUP/, as the bytes of a JSON list. A kind of device is in place of a worker,
its name after "kind" and a tab, which workers' names cannot have. In earlier files each worker's arrays are
separate, with its name in the group's place, and there is no list.
"""

import io
import json
import math
import os
import tempfile
import zipfile
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote, unquote

import numpy as np
from numpy.typing import NDArray

from predictors import Array, DeviceKind, ModelKey, Models
from rpc.writing import writing

_SUFFIX = ".npz"
_OWN_SUFFIX = f".models{_SUFFIX}"  # of the files that managers name; files of other names are never removed
_KIND = "kind\t"
_MOST_FILES = 1000  # in a folder, those of the last jobs
_MOST_ARRAYS = 400_000  # read from a file at most; 10,000 workers with models of all predictors have fewer


def models_file(folder: Path, job: str) -> Path:
    """Return the path of a job's models."""
    return folder / f"{quote(job, safe='')}{_OWN_SUFFIX}"


def save_models(path: Path, models: Models) -> None:
    """Write models to a file, which others see whole or not at all, even after a loss of power.

    Of too many such files of jobs in its folder (see `models_file`), those that were written longest ago are
    removed.

    Raises:
        OSError: The file cannot be written; it names `path`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with writing(path), tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as stream:
        try:
            stream.write(pack_models(models))
            stream.flush()
            os.fsync(stream.fileno())
            os.replace(stream.name, path)
        except BaseException:
            os.unlink(stream.name)
            raise
    files = list(path.parent.glob(f"*{_OWN_SUFFIX}"))
    for old in sorted(files, key=_written)[: max(0, len(files) - _MOST_FILES)]:
        old.unlink(missing_ok=True)


def pack_models(models: Models) -> bytes:
    """Return models as the bytes of a file of models."""
    groups: dict[tuple[str, tuple[tuple[str, tuple[int, ...]], ...]], list[ModelKey]] = {}
    for predictor, workers in models.items():
        for worker, weights in workers.items():
            shapes = tuple(sorted((name, np.shape(array)) for name, array in weights.items()))
            groups.setdefault((predictor, shapes), []).append(worker)
    arrays: dict[str, NDArray[Any]] = {}
    for number, ((predictor, shapes), keys) in enumerate(groups.items()):
        group = f"{quote(predictor, safe='')}/{number}"
        names = [f"{_KIND}{key}" if isinstance(key, DeviceKind) else key for key in keys]
        arrays[f"{group}/"] = np.frombuffer(json.dumps(names).encode(), dtype=np.uint8)
        for name, _ in shapes:
            stacked = np.stack([models[predictor][key][name] for key in keys])
            arrays[f"{group}/{quote(name, safe='')}"] = stacked
    packed = io.BytesIO()
    np.savez(packed, allow_pickle=False, **arrays)
    return packed.getvalue()


def unpack_models(packed: bytes) -> Models:
    """Return the models in the bytes of a file of models; none in no bytes.

    The bytes may come from anybody: nothing in them is run, and the models take no more memory than the
    bytes, but for the objects of some 100,000 arrays.

    Raises:
        ValueError: The bytes are not those of `pack_models`.
    """
    if not packed:
        return {}
    try:
        _check_sizes(packed)
    except (ValueError, EOFError, zipfile.BadZipFile, NotImplementedError, RuntimeError, OSError) as error:
        raise ValueError(f"models that were sent: not a file of saved models ({error})") from error
    return _read(io.BytesIO(packed), "that were sent")


def load_models(path: Path) -> Models:
    """Read a file of models, or all files in a folder; of a worker that is in several, the newest counts.

    Raises:
        ValueError: There is no file, or a file is not one of `save_models`.
    """
    if path.is_dir():
        files = sorted(path.glob(f"*{_SUFFIX}"), key=_written)
        if not files:
            raise ValueError(f"models {str(path)!r}: no {_SUFFIX} file in this folder")
    else:
        files = [path]
    models: dict[str, dict[ModelKey, dict[str, Array]]] = {}
    for file in files:
        for predictor, workers in _read(file, repr(str(file))).items():
            models.setdefault(predictor, {}).update(workers)
    return models


def _written(file: Path) -> float:
    """Return when a file was written, in seconds since 1970; 0 if it has gone meanwhile."""
    try:
        return file.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _check_sizes(packed: bytes) -> None:
    """Check that the packed arrays are as long as they claim, before NumPy allocates memory for them."""
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


def _read(file: Path | IO[bytes], source: str) -> dict[str, dict[ModelKey, dict[str, Array]]]:
    models: dict[str, dict[ModelKey, dict[str, Array]]] = {}
    try:
        with np.load(file, allow_pickle=False) as file_of_arrays:
            arrays = {key: _parts(key, file_of_arrays[key]) for key in file_of_arrays.files}
        lists = {(predictor, group): array for predictor, group, name, array in arrays.values() if not name}
        left = _MOST_ARRAYS
        for key, (predictor, group, name, array) in arrays.items():
            if not name:
                continue
            values = np.asarray(array, dtype=np.float64)
            if not np.isfinite(values).all():
                raise ValueError(f"array {key!r} is not finite")
            names = lists.get((predictor, group))
            workers = [group] if names is None else _names(names, len(values))
            left -= len(workers)
            if left < 0:
                raise ValueError(f"more than {_MOST_ARRAYS} arrays")
            for worker, weights in zip(workers, values if names is not None else [values], strict=True):
                models.setdefault(predictor, {}).setdefault(_key(worker), {})[name] = np.array(weights)
    except (
        OSError,
        EOFError,
        ValueError,
        TypeError,
        RecursionError,
        zipfile.BadZipFile,
        AttributeError,
    ) as error:
        raise ValueError(f"models {source}: not a file of saved models ({error})") from error
    return models


def _parts(key: str, array: NDArray[Any]) -> tuple[str, str, str, NDArray[Any]]:
    predictor, group, name = (unquote(part) for part in key.split("/"))
    return predictor, group, name, array


def _key(name: str) -> ModelKey:
    """Return the worker or the kind of device of which a file has the name."""
    return DeviceKind(name.removeprefix(_KIND)) if name.startswith(_KIND) else name


def _names(array: NDArray[Any], count: int) -> list[str]:
    """Return the names of a group's workers, one for each of its rows."""
    names = json.loads(array.tobytes())
    if not isinstance(names, list) or len(names) != count or not all(type(name) is str for name in names):
        raise ValueError(f"a group of {count} models has other names")
    return names
