"""Figures 6 and 7 of LB-BSP: hardware, statistical and overall efficiency on unequal workers.

Each scheme trains each workload: BSP, ASP, SSP with a bound of 5, and LB-BSP. Workers with unequal shares of
this machine's cores stand for unequal GPUs. Figure 6 has, each as a share of BSP's: (a) the time per gradient
update (with barriers, the iteration time divided by the workers' number), (b) the updates until a target
accuracy, (c) the time until then. Figure 7 has the test accuracy of the same runs against epochs; an epoch is
as many updates as use each sample once. Snapshots of the parameters are evaluated after each run, so that
measuring does not disturb it. ARGUMENTS after -- go to all workloads.

Example:
  evenpace lab experiment fig6 --workloads digits,cifarnet --policy learned --policy proportional
  evenpace lab experiment fig6 --workloads cifarnet --data cifarnet=cifar10:DIR --target cifarnet=0.45
  evenpace lab experiment fig6 --report runs/fig6/fig6.json
"""

import contextlib
import json
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console

from batchsize_manager.policies import POLICIES
from evenpace.cli.values import positive_number
from evenpace.local.terminal import make_progress
from evenpace.reports import files
from idl.errors import InvalidRequestError
from idl.settings import Setting, check_settings
from lab.experiments import analysis, plots
from lab.experiments.comparison import Evaluator
from lab.experiments.scheme_run import RunConfig, SchemeRun
from lab.experiments.schemes import SCHEMES, Scheme
from lab.experiments.unequal import UnequalShares, run_unequal
from lab.fields import Folder, numbers, parse_names
from lab.plots import save
from lab.report import Columns, table_of
from lab.workloads.by_name import BATCH_SIZES, WORKLOADS, Arguments, Training, by_workload

Figures = dict[str, Any]

BASELINE = "bsp"
COORDINATION = (BASELINE, "asp", "ssp", "lb-bsp")  # what the paper compares on GPUs
_TARGET = 0.98  # share of the accuracy that BSP ends with, unless a target is given


# Until accuracy stays level, on default data; of other workloads as many as are enough.
_ITERATIONS = {"digits": 120, "cifarnet": 60, "resnet32": 100}
_OTHER_ITERATIONS = 150


@dataclass(frozen=True, kw_only=True)
class CoordinationConfig:
    """The configuration of Figures 6 and 7."""

    workloads: Annotated[
        tuple[str, ...], Setting(f"Of {', '.join(WORKLOADS)}.", metavar="NAME,...", read=parse_names)
    ] = ("digits", "cifarnet", "resnet32")
    schemes: Annotated[
        tuple[str, ...],
        Setting("Ways to coordinate workers.", metavar="NAME,...", read=parse_names, choices=COORDINATION),
    ] = COORDINATION
    policies: Annotated[
        tuple[str, ...],
        Setting("Of lb-bsp; may be repeated, each is a scheme.", name="policy", choices=POLICIES),
    ] = ("leader_straggler",)
    out: Folder = Path("runs/fig6")
    shares: UnequalShares = (0.6, 0.4, 0.25, 0.15)
    settle: Annotated[
        float,
        Setting(
            "First part of a run, left out of the time per update: LB-BSP starts from an even split.",
            least=0,
            below=1,
        ),
    ] = 0.5
    seeds: Annotated[tuple[int, ...], numbers("seeds", "A run with each; means.", "SEED,...", 0)] = (1,)
    data: Annotated[
        tuple[str, ...],
        Setting(
            "What a workload trains on, as its script's --data has it: cifarnet=cifar10:DIR, "
            "digits=mnist:DIR.  [default: generated, and scikit-learn's digits]",
            metavar="[NAME=]SPEC",
        ),
    ] = ()
    iterations: Annotated[
        tuple[str, ...], Setting("Of BSP.  [default: by workload]", metavar="[NAME=]COUNT")
    ] = ()
    batch_size: Annotated[
        tuple[str, ...], Setting("Over all workers.  [default: by workload]", metavar="[NAME=]SAMPLES")
    ] = ()
    target: Annotated[
        tuple[str, ...],
        Setting(
            "From 0 to 1, to be reached.  [default: 98% of what BSP ends with]", metavar="[NAME=]ACCURACY"
        ),
    ] = ()
    report: Annotated[
        Path | None, Setting("Draw from these figures of an earlier run, instead of training.", folder=False)
    ] = None
    arguments: Arguments = ()

    def __post_init__(self) -> None:
        check_settings(self)
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise InvalidRequestError(
                f"seeds {', '.join(map(str, self.seeds))}: give at least one, each once"
            )


def run(config: CoordinationConfig, console: Console, json_path: Path | None = None) -> Figures:
    """Train, or read the figures of an earlier run; draw fig6.png and fig7.png, and print both figures.

    The figures are saved after each run, in fig6.json in the folder where there is no other path.
    """
    json_path = json_path or config.out / "fig6.json"
    config.out.mkdir(parents=True, exist_ok=True)
    if config.report is not None:
        figures = _read(config.report)
        files.write_json(figures, json_path)
    else:
        figures = compare(config, json_path, console)
    save(plots.efficiency(figures), config.out / "fig6.png")
    save(plots.accuracy(figures), config.out / "fig7.png")
    print_efficiency(figures, console)
    print_accuracy(figures, console)
    console.print(f"Figures: {json_path}; fig6.png and fig7.png in {config.out}", soft_wrap=True)
    return figures


def _workloads(config: CoordinationConfig) -> Iterator[tuple[Evaluator, RunConfig, float | None]]:
    """Yield the workloads that are trained, each with its target accuracy, if one was given."""
    names = list(dict.fromkeys(config.workloads))
    specs = by_workload("data", config.data, names, str)
    counts = by_workload("iterations", config.iterations, names, positive_number)
    sizes = by_workload("batch-size", config.batch_size, names, positive_number)
    targets = by_workload("target", config.target, names, _share)
    for name in names:
        data = ("--data", specs[name]) if name in specs else ()
        evaluator = Evaluator(Training(name, (*config.arguments, *data)))
        iterations = counts.get(name, _ITERATIONS.get(name, _OTHER_ITERATIONS))
        run_config = evaluator.run_config(config.shares, iterations, sizes.get(name, BATCH_SIZES[name]))
        yield evaluator, run_config, targets.get(name)


def _share(text: str) -> float:
    """Read a number above 0 and up to 1 (ValueError: the text is no such number)."""
    with contextlib.suppress(ValueError):
        if 0 < (number := float(text)) <= 1:
            return number
    raise ValueError(f"{text!r}: must be above 0 and at most 1")


def _read(path: Path) -> Figures:
    """Read the figures of an earlier run (ValueError: the file has none)."""
    try:
        figures: Figures = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path}: not JSON: {error}") from error
    if not isinstance(figures, dict) or not figures.get("workloads"):
        raise ValueError(f"{path}: expected the figures of fig6, with at least one workload")
    return figures


def choose(names: Sequence[str], policies: Sequence[str]) -> list[Scheme]:
    """Return the schemes of these names, BSP first; `lb-bsp` stands for one scheme with each policy."""
    chosen: list[Scheme] = []
    for name in dict.fromkeys((BASELINE, *names)):
        if name == "lb-bsp":
            chosen += [Scheme(f"lb-bsp:{policy}", policy) for policy in dict.fromkeys(policies)]
        else:
            chosen.append(SCHEMES[name])
    return chosen


def compare(config: CoordinationConfig, json_path: Path, console: Console) -> Figures:
    """Run every scheme with every workload and seed; return the figures, saved after each run."""
    trained = list(_workloads(config))  # all, so that one that does not fit is known before anything starts
    figures: Figures = {
        "shares": list(config.shares),
        "seeds": list(config.seeds),
        "settle": config.settle,
        "load_average": os.getloadavg()[1],
        "workloads": {},
    }
    with make_progress(console, 44) as progress:
        for evaluator, run_config, target in trained:
            training = run_config.training
            entry: Figures = {
                "data": evaluator.data,
                "iterations": run_config.iterations,
                "total_batch_size": run_config.total_batch_size,
                "schemes": {},
            }
            figures["workloads"][training.name] = entry
            for scheme in choose(config.schemes, config.policies):
                entry["schemes"][scheme.name] = {"synchronous": scheme.synchronous, "runs": []}
                for seed in config.seeds:
                    what = f"{training.name}, {scheme.name}, seed {seed}"
                    task = progress.add_task(what, total=run_config.iterations)
                    measured = run_unequal(
                        scheme,
                        replace(run_config, training=training.with_options("--seed", str(seed))),
                        config.out / training.name / f"{scheme.name.replace(':', '-')}-{seed}",
                        lambda done, _, task=task: progress.update(task, completed=done),  # type: ignore[misc]
                    )
                    shown = _run_figures(measured, evaluator, run_config, config.settle)
                    entry["schemes"][scheme.name]["runs"].append({"seed": seed, **shown})
                    relate(entry, target)
                    files.write_json(figures, json_path)
    return figures


def relate(entry: Figures, target: float | None) -> None:
    """Add a workload's figures relative to BSP and to the target accuracy.

    The entry gets `target`, None for 98% of the accuracy that BSP ends with, in the mean over its runs; each
    scheme gets its means over the seeds, and `of_bsp`.
    """
    schemes = entry["schemes"]
    reference = statistics.fmean(run["accuracy"] for run in schemes[BASELINE]["runs"])
    goal = _TARGET * reference if target is None else target
    entry["target"] = goal
    for figures in schemes.values():
        for run in figures["runs"]:
            point = analysis.crossing(run["curve"], goal)
            run["updates_to_target"], run["seconds_to_target"] = point or (None, None)
        figures.update(analysis.summarise(figures["runs"]))
        figures["accuracy"] = statistics.fmean(run["accuracy"] for run in figures["runs"])
        figures["reached"] = sum(run["updates_to_target"] is not None for run in figures["runs"])
    for name, shares in analysis.relative(schemes, BASELINE).items():
        schemes[name]["of_bsp"] = shares


def print_efficiency(figures: Figures, console: Console) -> None:
    """Print Figure 6 as tables, one for each workload."""
    for name, entry in figures["workloads"].items():
        columns: Columns = {
            "per_update_s": ("ms/update", lambda seconds: f"{1e3 * seconds:.1f}"),
            "of_bsp.per_update_s": ("of BSP", "{:.2f}"),
            "shown_updates": (f"updates to {entry['target']:.1%}", "{}"),
            "of_bsp.updates_to_target": ("of BSP", "{:.2f}"),
            "seconds_to_target": ("s to it", "{:.1f}"),
            "of_bsp.seconds_to_target": ("of BSP", "{:.2f}"),
        }
        rows = (
            (scheme, {**values, "shown_updates": _updates(values)})
            for scheme, values in entry["schemes"].items()
        )
        console.print(table_of(f"Figure 6: {name} on {entry['data']}", "scheme", columns, rows, no_wrap=True))


def print_accuracy(figures: Figures, console: Console) -> None:
    """Print the accuracies that the curves of Figure 7 end with."""
    columns: Columns = {
        "epochs": ("epochs", "{:.1f}"),
        "accuracy": ("accuracy", "{:.1%}"),
        "best": ("best", "{:.1%}"),
    }
    for name, entry in figures["workloads"].items():
        rows = []
        for scheme, values in entry["schemes"].items():
            curves = [run["curve"] for run in values["runs"]]
            epochs = statistics.fmean(curve[-1]["epochs"] for curve in curves)
            best = statistics.fmean(max(point["accuracy"] for point in curve) for curve in curves)
            rows.append((scheme, {**values, "epochs": epochs, "best": best}))
        console.print(table_of(f"Figure 7: {name} on {entry['data']}", "scheme", columns, rows, no_wrap=True))


def _updates(values: Mapping[str, Any]) -> str:
    """Return the updates to the target in words."""
    if values["updates_to_target"] is not None:
        return f"{values['updates_to_target']:.0f}"
    runs = len(values["runs"])
    return "not reached" if runs == 1 else f"not reached ({values['reached']} of {runs})"


def _run_figures(run: SchemeRun, evaluator: Evaluator, config: RunConfig, settle: float) -> Figures:
    """Return the figures of one run by itself."""
    workers = len(config.shares)
    per_epoch = -(-evaluator.samples // config.total_batch_size) * workers  # updates
    curve = [{**point, "epochs": point["updates"] / per_epoch} for point in evaluator.curve(run.snapshots)]
    skipped = round(settle * config.iterations)
    return {
        "per_update_s": analysis.per_update_seconds(
            run.records, curve, workers, run.scheme.synchronous, skipped
        ),
        "accuracy": curve[-1]["accuracy"],
        # Without barriers the slowest worker may not have finished an iteration.
        "batch_sizes": {
            name: part["batch_size"] for last in run.records[-1:] for name, part in last["workers"].items()
        },
        "curve": curve,
    }
