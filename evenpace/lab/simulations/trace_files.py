"""Files of measurements of models, and the applications that are made of them.

A model has a folder by its name. `placements.csv` has the columns `placement,local_bsz,step_time,sync_time`,
with a digit for each node in a placement; `scalability.csv` has `num_nodes,num_replicas` instead of it. A
`validation-M.csv` has a row for each epoch of a training with batches of M samples, with the columns
`progress,iteration,grad_sqr,grad_var`, and may have `metric` as well.
"""

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from evenpace.lab.csv_rows import Row, read_rows
from scheduler.simulator.applications import Application, Array, Epochs, Shape, StepTime, StepTimes
from scheduler.simulator.rules import PUBLISHED_LIMITS, JobLimits

_SECONDS = ("step_time", "sync_time")
_EPOCHS = ("progress", "iteration", "grad_sqr", "grad_var")


def read_applications(
    folder: Path, limits: Mapping[str, JobLimits] = PUBLISHED_LIMITS
) -> dict[str, Application]:
    """Read all models of a folder, by name.

    Args:
        folder: Folder of MODEL folders.
        limits: Limits by model; others have none.

    Raises:
        ValueError: There is no model, or a file is of another form.
        OSError: A file cannot be read.
    """
    models = sorted(path.parent for path in folder.glob("*/placements.csv"))
    if not models:
        raise ValueError(f"{folder}: there is no MODEL/placements.csv")
    return {model.name: _read_application(model, limits.get(model.name)) for model in models}


def _read_application(folder: Path, limits: JobLimits | None) -> Application:
    trainings = {
        int(name[1]): _read_epochs(path)
        for path in folder.iterdir()
        if (name := re.fullmatch(r"validation-([1-9][0-9]{0,17})\.csv", path.name))
    }
    if not trainings:
        raise ValueError(f"{folder}: there is no validation-M.csv, with M a number of samples")
    step_times = StepTimes(
        _read_placements(folder / "placements.csv"), _read_scalability(folder / "scalability.csv")
    )
    try:
        return Application(folder.name, step_times, trainings, limits)
    except ValueError as error:
        raise ValueError(f"{folder}: {error}") from error


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
