"""`evenpace lab experiment fig6`, `fig7` and `fig8`: the paper's figures on unequal workers."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from batchsize_manager.policies import POLICIES
from evenpace.cli.options import example, json_path, user_mistakes
from evenpace.cli.settings import configured, option
from evenpace.cli.values import positive_number
from lab.commands.experiment import BATCH_SIZES
from lab.commands.options import by_workload, share
from lab.experiments.config import BandwidthCut, CoordinationConfig, MigrationConfig

_ITERATIONS = {"digits": 120, "cifarnet": 60, "resnet32": 100}  # until accuracy stays level, on default data
_OTHER_ITERATIONS = 150  # of the other workloads


def _comparison_options(name: str, workloads: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the options that Figures 6 and 7 share."""
    options: list[Callable[[Any], Any]] = [
        click.option(
            "--workloads",
            default=workloads,
            show_default=True,
            metavar="NAME,...",
            help=f"Of {', '.join(BATCH_SIZES)}.",
        ),
        click.option("--schemes", default="bsp,asp,ssp,lb-bsp", show_default=True, metavar="NAME,..."),
        click.option(
            "--policy",
            "policies",
            type=click.Choice(list(POLICIES)),
            multiple=True,
            default=("leader_straggler",),
            show_default=True,
            help="Of lb-bsp; may be repeated, each is a scheme.",
        ),
        configured(CoordinationConfig, "config", out=Path("runs") / name),
        click.option(
            "--data",
            multiple=True,
            metavar="[NAME=]SPEC",
            help="What a workload trains on, as its script's --data has it: cifarnet=cifar10:DIR, "
            "digits=mnist:DIR.  [default: generated, and scikit-learn's digits]",
        ),
        click.option(
            "--iterations", multiple=True, metavar="[NAME=]COUNT", help="Of BSP.  [default: by workload]"
        ),
        click.option(
            "--batch-size",
            multiple=True,
            metavar="[NAME=]SAMPLES",
            help="Over all workers.  [default: by workload]",
        ),
        click.option(
            "--target",
            multiple=True,
            metavar="[NAME=]ACCURACY",
            help="From 0 to 1, to be reached.  [default: 98% of what BSP ends with]",
        ),
        _plot_option,
        json_path,
        click.argument("arguments", nargs=-1, type=click.UNPROCESSED),
    ]

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        for one in reversed(options):
            function = one(function)
        return function

    return add


_plot_option = click.option(
    "--plot", type=click.Path(path_type=Path), default=None, help="Draw it here.  [default: in --out]"
)


@click.command()
@example(
    "evenpace lab experiment fig6 --workloads digits,cifarnet --policy learned --policy proportional\n"
    "  evenpace lab experiment fig6 --workloads cifarnet --data cifarnet=cifar10:DIR --target cifarnet=0.45"
)
@_comparison_options("fig6", "digits,cifarnet,resnet32")
def fig6(config: CoordinationConfig, plot: Path | None, json_path: Path | None, **options: Any) -> None:
    """Figure 6 of LB-BSP: hardware, statistical and overall efficiency on unequal workers.

    Each scheme trains each workload: BSP, ASP, SSP with a bound of 5, and LB-BSP. Workers with unequal shares
    of this machine's cores stand for unequal GPUs. Reported, each as a share of BSP's: (a) the time per
    gradient update (with barriers, the iteration time divided by the workers' number), (b) the updates until
    a target accuracy, (c) the time until then. Snapshots of the parameters are evaluated after each run, so
    that measuring does not disturb it. ARGUMENTS after -- go to all workloads.
    """
    from rich.console import Console

    from lab.experiments import coordination, plots
    from lab.plots import save

    json_path, plot = json_path or config.out / "fig6.json", plot or config.out / "fig6.png"
    console = Console()
    with user_mistakes():
        figures = _compare(config, json_path, console, **options)
        save(plots.efficiency(figures), plot)
    coordination.print_efficiency(figures, console)
    click.echo(f"Figures: {json_path}, {plot}")


@click.command()
@example(
    "evenpace lab experiment fig7 --workloads cifarnet --data cifar10:DIR --iterations 300\n"
    "  evenpace lab experiment fig7 --report runs/fig6/fig6.json"
)
@_comparison_options("fig7", "cifarnet,resnet32")
@click.option(
    "--report",
    "known",
    type=click.Path(path_type=Path),
    default=None,
    help="Draw from these figures of fig6 or fig7, instead of training.",
)
def fig7(
    known: Path | None,
    config: CoordinationConfig,
    plot: Path | None,
    json_path: Path | None,
    **options: Any,
) -> None:
    """Figure 7 of LB-BSP: test accuracy against epochs on unequal workers.

    The runs are those of fig6, whose figures hold the curves, too; an epoch is as many updates as use each
    sample once. ARGUMENTS after -- go to all workloads.
    """
    from rich.console import Console

    from evenpace.reports.files import write_json
    from lab.experiments import coordination, plots
    from lab.plots import save

    json_path, plot = json_path or config.out / "fig7.json", plot or config.out / "fig7.png"
    console = Console()
    with user_mistakes():
        if known is None:
            figures = _compare(config, json_path, console, **options)
        else:
            figures = _read(known)
            _make_folders(config.out, json_path)
            write_json(figures, json_path)
        _make_folders(plot.parent)
        save(plots.accuracy(figures), plot)
    coordination.print_accuracy(figures, console)
    click.echo(f"Figures: {json_path}, {plot}")


@click.command()
@example("evenpace lab experiment fig8 --policy proportional --cut-worker 2 --cut-at 100 --cut-to 200")
@click.option("--workload", type=click.Choice(list(BATCH_SIZES)), default="digits", show_default=True)
@configured(MigrationConfig, "config", without=("iteration",), out=Path("runs/fig8"))
@option(BandwidthCut, "iteration", None)
@click.option("--no-cut", is_flag=True, help="Without a cut and without network namespaces.")
@_plot_option
@json_path
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def fig8(
    workload: str,
    config: MigrationConfig,
    cut_at: int | None,
    no_cut: bool,
    plot: Path | None,
    json_path: Path | None,
    arguments: tuple[str, ...],
) -> None:
    """Figure 8 of LB-BSP: batch sizes and times of unequal workers, before and after a bandwidth is cut.

    Each worker runs in a network namespace of its own, on a bridge of a private range; in the middle, the
    kernel (tc tbf) bounds the bandwidth of one, both ways, so that its pushes and pulls take longer. This
    needs root and iproute2; with --no-cut it needs neither, and shows the first half only. Nothing of the
    network stays behind. Workers with unequal shares of this machine's cores stand for unequal GPUs.
    ARGUMENTS after -- go to the workload.
    """
    from rich.console import Console

    from evenpace.reports.files import write_json
    from lab.experiments import migration, plots
    from lab.experiments.comparison import Evaluator
    from lab.experiments.unequal import UnequalConfig
    from lab.plots import save
    from lab.workloads.by_name import Training

    json_path, plot = json_path or config.out / "fig8.json", plot or config.out / "fig8.png"
    console = Console()
    with user_mistakes():
        training = Training(workload, arguments)
        evaluator = Evaluator(training)
        if config.batch_size > evaluator.samples:
            raise ValueError(
                f"batch size {config.batch_size}: {workload} has {evaluator.samples} samples to train on"
            )
        trained = UnequalConfig(
            training=training,
            elements=evaluator.elements,
            shares=config.shares,
            iterations=config.iterations,
            total_batch_size=config.batch_size,
            snapshots=0,
            limit_kind=config.limit_kind,
            shards=config.shards,
        )
        cut = None if no_cut else replace(config.cut, iteration=cut_at or config.iterations // 2)
        _make_folders(config.out, json_path, plot)
        figures = migration.run_migration(config.policy, trained, cut, config.out / "logs", console)
        write_json(figures, json_path)
        save(plots.migration(figures), plot)
    migration.print_phases(figures, console)
    click.echo(f"Figures: {json_path}, {plot}")


def _compare(
    config: CoordinationConfig,
    json_path: Path,
    console: Any,
    *,
    workloads: str,
    schemes: str,
    policies: tuple[str, ...],
    data: tuple[str, ...],
    iterations: tuple[str, ...],
    batch_size: tuple[str, ...],
    target: tuple[str, ...],
    arguments: tuple[str, ...],
) -> dict[str, Any]:
    from lab.experiments.coordination import TrainedWorkload, choose, compare
    from lab.workloads.by_name import Training

    names = list(dict.fromkeys(workloads.split(",")))
    specs = by_workload("data", data, names, str)
    counts = by_workload("iterations", iterations, names, positive_number)
    sizes = by_workload("batch-size", batch_size, names, positive_number)
    targets = by_workload("target", target, names, share)
    jobs = []
    for name in names:
        spec = ("--data", specs[name]) if name in specs else ()
        training = Training(name, (*arguments, *spec))
        length = counts.get(name, _ITERATIONS.get(name, _OTHER_ITERATIONS))
        jobs.append(TrainedWorkload(training, length, sizes.get(name, BATCH_SIZES[name]), targets.get(name)))
    chosen = choose(schemes.split(","), policies)
    _make_folders(config.out, json_path)
    return compare(jobs, chosen, config, json_path, console)


def _read(path: Path) -> dict[str, Any]:
    try:
        figures = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path}: not JSON: {error}") from error
    if not isinstance(figures, dict) or not figures.get("workloads"):
        raise ValueError(f"{path}: expected the figures of fig6 or fig7, with at least one workload")
    return figures


def _make_folders(folder: Path, *files: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
