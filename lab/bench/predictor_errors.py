"""Compare predictors of speeds on a trace.

Each predictor names every iteration's speeds before it sees them, as a manager would use it: then it gets
them, with the usage that is known as the next iteration begins, and learns if learning is due. Fits are run
to their end before the replay goes on, in another process; a manager would go on meanwhile. Its error is
compared with that of the moving average, ema, and with the noise floor where the trace has it.

Example:
  evenpace lab bench predictors --trace trace.csv --json predictors.json
"""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress

from evenpace.local.terminal import make_progress, make_table
from idl.errors import EvenpaceError, InvalidRequestError
from idl.settings import Checked, Setting
from lab.process_pool import process_pool
from lab.trace_contention import contention_trace
from lab.traces import Trace, read_trace
from predictors import PREDICTORS, Array, Fit, PredictorOptions, Weights, make_predictor

REFERENCE = "ema"

_FEW_WORKERS = 5  # workers up to which the table has a column for each, within 80 characters


@dataclass(frozen=True)
class Grid:
    """A trace laid out for a replay; arrays are (iterations, workers), over all iterations of any worker."""

    workers: tuple[str, ...]  # names, in the order of the columns
    iterations: NDArray[np.int64]  # iteration numbers, increasing, (iterations,)
    speeds: Array  # samples per second; NaN where a worker had no samples, or no row
    # Usage as the iteration begins, 0 to 1. Where a worker has no row, that of its last row stays; before its
    # first row, it is that of the first.
    cpu_usage: Array
    memory_usage: Array
    expected: Array  # samples per second that a perfect predictor would name; NaN where not known
    # True where a prediction counts: there is a speed, one came before it, and the worker's warm-up is over.
    scored: NDArray[np.bool_]


@dataclass
class Replay:
    """A predictor's predictions for a trace."""

    predictions: Array  # samples per second, (iterations, workers); NaN for a worker before its first speed
    fit_seconds: list[float] = field(default_factory=list)  # seconds of each fit that succeeded
    failures: list[str] = field(default_factory=list)  # reasons why fits failed, in words


@dataclass(frozen=True)
class PredictorsConfig(Checked):
    """What is compared, and on what (InvalidRequestError: a value is out of its range)."""

    trace: Annotated[
        Path | None,
        Setting("From `evenpace lab trace`.  [default: contention that comes and goes]", folder=False),
    ] = None
    predictors: Annotated[
        tuple[str, ...],
        Setting("Beside ema; may be repeated.  [default: all]", name="predictor", choices=PREDICTORS),
    ] = ()
    options: PredictorOptions = field(default_factory=PredictorOptions)
    warm_up: Annotated[
        int | None,
        Setting(
            "Iterations of each worker that do not count.  [default: those before the first fit]", least=0
        ),
    ] = None


def run(config: PredictorsConfig, console: Console) -> dict[str, Any]:
    """Replay a trace through predictors, and print and return the figures.

    They are, with `null` for what is not known; errors are root mean squares (RMSE)::

        {"trace": {"source": file or "built-in", "workers": count, "iterations": count},
         "options": {"first_fit": iterations, "refit_every": iterations, "warm_up": iterations},
         "scored": {"workers": count, "rows": count},
         "workers": {worker: {"rows": count that is scored, "mean_speed": samples/s, "floor": samples/s}},
         "floor": {"relative": share, "pooled": samples/s},
         "predictors": {name: {"relative": score, "pooled": score, "workers": {worker: score},
                               "fits": count, "failed_fits": count, "fit_s_median": seconds}}}

        score: {"rmse": number, "to_ema": rmse / EMA's, "gap_closed": share}

    `relative` is over all rows, each error divided by the worker's mean speed, so that fast workers do not
    dominate; `pooled` is over all rows as they are, in samples/s, as are the workers' own. `gap_closed` is
    (rmse_ema - rmse) / (rmse_ema - floor). The floor is known where each row that is scored has `expected`.
    """
    options = config.options
    warm_up = options.first_fit if config.warm_up is None else config.warm_up
    names = [name for name in PREDICTORS if not config.predictors or name in (*config.predictors, REFERENCE)]
    trace = contention_trace() if config.trace is None else read_trace(config.trace)
    grid = lay_out(trace, warm_up)
    with process_pool(1) as executor:
        with make_progress(console, transient=True) as bar:
            replays = {}
            for name in names:
                advance = _advancing(bar, bar.add_task(name, total=len(grid.iterations)))
                replays[name] = replay(name, grid, options, executor, advance)
        figures = {
            "trace": {
                "source": "built-in" if config.trace is None else str(config.trace),
                "workers": len(grid.workers),
                "iterations": len(grid.iterations),
            },
            "options": {
                "first_fit": options.first_fit,
                "refit_every": options.refit_every,
                "warm_up": warm_up,
            },
            **score(grid, {name: done.predictions for name, done in replays.items()}),
        }
        for name, done in replays.items():
            figures["predictors"][name] |= {
                "fits": len(done.fit_seconds),
                "failed_fits": len(done.failures),
                "fit_s_median": statistics.median(done.fit_seconds) if done.fit_seconds else None,
            }
    _print_errors(console, figures)
    for name, done in replays.items():
        if done.failures:
            console.print(f"{name}: {len(done.failures)} fits failed, the first with {done.failures[0]}")
    return figures


# -- errors


def lay_out(trace: Trace, warm_up: int) -> Grid:
    """Lay a trace out for a replay; the first `warm_up` rows of each worker do not count."""
    iterations = np.unique(np.concatenate([series.iterations for series in trace.values()]))
    shape = (len(iterations), len(trace))
    speeds, expected = np.full(shape, np.nan), np.full(shape, np.nan)
    cpu_usage, memory_usage = np.empty(shape), np.empty(shape)
    scored = np.zeros(shape, dtype=bool)
    for column, series in enumerate(trace.values()):
        rows = np.searchsorted(iterations, series.iterations)
        speeds[rows, column] = series.speeds
        expected[rows, column] = series.expected
        # Index of each worker's last row so far; before its first row, of that one.
        latest = np.searchsorted(series.iterations, iterations, side="right") - 1
        cpu_usage[:, column] = series.cpu_usage[np.maximum(latest, 0)]
        memory_usage[:, column] = series.memory_usage[np.maximum(latest, 0)]
        measured = ~np.isnan(series.speeds)
        counts = measured & (np.cumsum(measured) > 1) & (np.arange(len(measured)) >= warm_up)
        scored[rows, column] = counts
    if not scored.any():
        longest = max(len(series.iterations) for series in trace.values())
        raise InvalidRequestError(
            f"warm-up {warm_up}: no speed is left to count, the longest worker has {longest} iterations; "
            "choose a longer trace, or a shorter --warm-up and --first-fit"
        )
    return Grid(tuple(trace), iterations, speeds, cpu_usage, memory_usage, expected, scored)


def replay(
    name: str,
    grid: Grid,
    options: PredictorOptions,
    executor: Executor,
    advance: Callable[[], None] = lambda: None,
) -> Replay:
    """Let a predictor predict each iteration's speeds before it sees them."""
    predictor = make_predictor(name, options)
    predictor.set_workers(grid.workers)
    done = Replay(np.empty(grid.speeds.shape))
    last = len(grid.iterations) - 1
    for k in range(last + 1):
        done.predictions[k] = predictor.predict()
        if k < last:
            predictor.observe(grid.speeds[k], grid.cpu_usage[k + 1], grid.memory_usage[k + 1])
            while (fit := predictor.due_fit()) is not None:
                weights = _fit(executor, fit, done)
                predictor.take_fit(weights)
                if weights is None:
                    break  # it may be due again at once
        advance()
    return done


def score(grid: Grid, predictions: Mapping[str, Array]) -> dict[str, Any]:
    """Return the errors of predictions, as the module's docstring describes them.

    They are in samples per second, (iterations, workers), by predictor, `REFERENCE` among them.
    """
    columns = [column for column in range(len(grid.workers)) if grid.scored[:, column].any()]
    names = [grid.workers[column] for column in columns]
    scored = grid.scored[:, columns]
    speeds = np.where(scored, grid.speeds[:, columns], np.nan)
    means = np.nanmean(speeds, axis=0)  # (workers that are scored,)

    def errors(values: Array) -> dict[str, float]:
        squares = (values[:, columns] - speeds) ** 2
        return {
            "relative": _root_mean(squares / means**2, scored),
            "pooled": _root_mean(squares, scored),
            **{f"worker {name}": _root_mean(squares[:, i], scored[:, i]) for i, name in enumerate(names)},
        }

    floor = errors(grid.expected)
    found = {name: errors(values) for name, values in predictions.items()}
    reference = found[REFERENCE]

    def scores(name: str) -> dict[str, Any]:
        by_what = {
            what: {
                "rmse": rmse,
                "to_ema": rmse / reference[what] if reference[what] else math.nan,
                "gap_closed": gap_closed(rmse, reference[what], floor[what]),
            }
            for what, rmse in found[name].items()
        }
        workers = {worker: by_what.pop(f"worker {worker}") for worker in names}
        return {**by_what, "workers": workers}

    return {
        "scored": {"workers": len(names), "rows": int(scored.sum())},
        "workers": {
            name: {
                "rows": int(scored[:, i].sum()),
                "mean_speed": float(means[i]),
                "floor": floor[f"worker {name}"],
            }
            for i, name in enumerate(names)
        },
        "floor": {"relative": floor["relative"], "pooled": floor["pooled"]},
        "predictors": {name: scores(name) for name in predictions},
    }


def gap_closed(rmse: float, reference: float, floor: float) -> float:
    """Return the share of the gap between EMA's error and the noise floor that a predictor closes.

    Negative where it is worse than EMA; NaN where the floor is not known, or EMA is no worse than it.
    """
    if not reference > floor:
        return math.nan
    return (reference - rmse) / (reference - floor)


def _root_mean(squares: Array, scored: NDArray[np.bool_]) -> float:
    """Return the root of the mean over the scored values; NaN if one of them is NaN."""
    return float(np.sqrt(squares[scored].mean()))


# -- fits, in another process


def _timed(fit: Fit) -> tuple[Weights, float]:
    began = time.perf_counter()
    weights = fit.run()
    return weights, time.perf_counter() - began


def _fit(executor: Executor, fit: Fit, done: Replay) -> Weights | None:
    try:
        weights, seconds = executor.submit(_timed, fit).result()
    except BrokenProcessPool as error:
        raise EvenpaceError("the process that predictors learn in has died; is memory short?") from error
    except Exception as error:  # noqa: BLE001 - a fit runs whatever a predictor needs
        done.failures.append(f"{type(error).__name__}: {error}")
        return None
    done.fit_seconds.append(seconds)
    return weights


# -- showing


def _advancing(bar: Progress, task: Any) -> Callable[[], None]:
    return lambda: bar.advance(task)


def _print_errors(console: Console, figures: Mapping[str, Any]) -> None:
    counts, floor, workers = figures["scored"], figures["floor"], figures["workers"]
    overall = make_table(
        f"RMSE over {counts['rows']:,} predictions for {counts['workers']} workers",
        *("predictor", "% of mean speed", "of EMA's", "gap closed", "pooled, samples/s"),
        no_wrap=True,
    )
    few = len(workers) <= _FEW_WORKERS
    each = make_table(
        "RMSE of each worker, samples/s" if few else "RMSE of the workers, % of mean speed",
        *("predictor", *(workers if few else ("min", "median", "max"))),
        no_wrap=True,
    )
    for name, found in figures["predictors"].items():
        relative = found["relative"]
        overall.add_row(
            name,
            f"{relative['rmse']:.2%}",
            f"{relative['to_ema']:.3f}",
            "-" if math.isnan(relative["gap_closed"]) else f"{relative['gap_closed']:.0%}",
            f"{found['pooled']['rmse']:.3g}",
        )
        each.add_row(name, *_spread([its["rmse"] for its in found["workers"].values()], workers))
    if not math.isnan(floor["relative"]):
        to_ema = floor["relative"] / figures["predictors"][REFERENCE]["relative"]["rmse"]
        overall.add_row(
            "noise floor", f"{floor['relative']:.2%}", f"{to_ema:.3f}", "100%", f"{floor['pooled']:.3g}"
        )
        each.add_row("noise floor", *_spread([worker["floor"] for worker in workers.values()], workers))
    console.print(overall)
    if not math.isnan(floor["relative"]):
        console.print("The gap is that between EMA and the noise floor, which no predictor can beat.")
    console.print(each)


def _spread(rmses: Sequence[float], workers: Mapping[str, Any]) -> list[str]:
    if len(rmses) <= _FEW_WORKERS:
        return [f"{rmse:.3g}" for rmse in rmses]
    shares = [rmse / worker["mean_speed"] for rmse, worker in zip(rmses, workers.values(), strict=True)]
    return [f"{value:.2%}" for value in (min(shares), statistics.median(shares), max(shares))]
