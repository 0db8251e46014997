"""Files of measurements of models, and the applications that are made of them.

A model has a folder by its name, or several in folders of their own. `placements-KIND.csv` has step times
on devices of a kind, with the columns `placement,local_bsz,step_time,sync_time`, with a digit for each node
in a placement; `scalability-KIND.csv` has `num_nodes,num_replicas` instead. For the kind `gpu` they are
called `placements.csv` and `scalability.csv`. A `validation-M.csv` has a row for each epoch of a training
with batches of M samples, with the columns `progress,iteration,grad_sqr,grad_var`, and perhaps `metric`.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np

from lab.csv_rows import Row, read_rows
from lab.simulator.applications import Application, Array, Epochs, Shape, StepTime, StepTimes
from lab.simulator.rules import JobLimits

_SECONDS = ("step_time", "sync_time")
_EPOCHS = ("progress", "iteration", "grad_sqr", "grad_var")

PLAIN = "gpu"
"""The kind of devices whose files have no kind in their names."""


def read_applications(
    folders: Sequence[Path],
    kinds: Sequence[str],
    limits: Mapping[str, JobLimits],
    needed: Collection[str] = (),
) -> dict[str, Application]:
    """Read all models measured on all kinds of devices, by name; a model may lie in several folders.

    A model that is needed must not be left out for want of a measurement, if it is there at all (ValueError).
    """
    models: dict[str, dict[str, Path]] = {}
    for folder in folders:
        for path in sorted(folder.glob("*/*.csv")):
            models.setdefault(path.parent.name, {}).setdefault(path.name, path)
    applications = {}
    for name, files in sorted(models.items()):
        missing = _missing(files, kinds)
        if not missing:
            applications[name] = _read_application(name, files, kinds, limits.get(name))
        elif name in needed:
            raise ValueError(f"model {name!r}: there is no {missing} in {_named(folders)}")
    if not applications:
        raise ValueError(f"{_named(folders)}: there is no MODEL with {', '.join(_wanted(kinds))}")
    return applications


def _named(folders: Sequence[Path]) -> str:
    return " or ".join(map(str, folders))


def _suffix(kind: str) -> str:
    return "" if kind == PLAIN else f"-{kind}"


def _wanted(kinds: Sequence[str]) -> list[str]:
    of_kinds = [f"{file}{_suffix(kind)}.csv" for kind in kinds for file in ("placements", "scalability")]
    return [*of_kinds, "validation-M.csv"]


def _missing(files: Mapping[str, Path], kinds: Sequence[str]) -> str | None:
    """Return the name of a file that a model lacks, if there is one."""
    for name in _wanted(kinds):
        if name not in files and not (name == "validation-M.csv" and any(map(validated, files))):
            return name
    return None


def validated(name: str) -> int | None:
    """Return the samples of a batch by the name of the file of its training, None for another file's name."""
    found = re.fullmatch(r"validation-([1-9][0-9]{0,17})\.csv", name)
    return int(found[1]) if found else None


def _read_application(
    name: str, files: Mapping[str, Path], kinds: Sequence[str], limits: JobLimits | None
) -> Application:
    trainings = {size: _read_epochs(path) for file, path in files.items() if (size := validated(file))}
    step_times = {
        kind: StepTimes(
            _read_placements(files[f"placements{_suffix(kind)}.csv"]),
            _read_scalability(files[f"scalability{_suffix(kind)}.csv"]),
        )
        for kind in kinds
    }
    try:
        return Application(name, step_times, trainings, limits)
    except ValueError as error:
        raise ValueError(f"model {name!r}: {error}") from error


def _read_placements(path: Path) -> dict[Shape, tuple[Array, Array]]:
    rows: dict[Shape, dict[int, StepTime]] = {}
    for row in read_rows(path, ("placement", "local_bsz", *_SECONDS)):
        digits = row.text("placement")
        if not re.fullmatch("[1-9]+", digits):
            raise row.error("placement", "must be a digit from 1 to 9 for each node")
        rows.setdefault(tuple(map(int, digits)), {})[row.integer("local_bsz", 1)] = _seconds(row)
    if not rows:
        raise ValueError(f"{path}: there is no row")
    found = {}
    for shape, its in rows.items():
        sizes = sorted(its)
        found[shape] = np.array(sizes, dtype=float), np.array([its[size] for size in sizes])
    return found


def _read_scalability(path: Path) -> tuple[Array, Array]:
    points, seconds = [], []
    columns = ("num_nodes", "num_replicas", "local_bsz")
    for row in read_rows(path, (*columns, *_SECONDS)):
        points.append([row.integer(column, 1) for column in columns])
        seconds.append(_seconds(row))
    return np.array(points, dtype=float).reshape(-1, 3), np.array(seconds).reshape(-1, 2)


def _read_epochs(path: Path) -> Epochs:
    rows = [[row.number(column) for column in _EPOCHS] for row in read_rows(path, _EPOCHS, ("metric",))]
    if not rows:
        raise ValueError(f"{path}: there is no row")
    return Epochs(*np.array(rows).reshape(-1, 4).T)


def _seconds(row: Row) -> StepTime:
    step = row.positive("step_time")
    return StepTime(step, row.number("sync_time", most=step))
