"""`evenpace experiment`: contention, competing schemes, and the paper's table and figures."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from batchsize_manager.config import TOLERANCE
from batchsize_manager.policies import PolicyOptions
from evenpace.cli.options import (
    example,
    json_path,
    limit_kind,
    out_folder,
    ps_shards,
    user_mistakes,
)
from evenpace.cli.settings import option
from evenpace.cli.values import whole_numbers
from predictors import PredictorOptions

F = TypeVar("F", bound=Callable[..., Any])

# Over all workers; an iteration takes some tenths of a second with the default shares.
BATCH_SIZES = {
    "svm": 16_000,
    "logistic-regression": 16_000,
    "digits": 256,
    "cifarnet": 96,
    "resnet32": 64,
    "transformer": 256,
}
_SCHEMES = "bsp,lb-bsp:ema,lb-bsp:narx,lb-bsp:auto,asp,ssp,redundant,flexrr"


def _run_options(function: F) -> F:
    """The options of every experiment that trains."""
    options = [
        click.option(
            "--shares",
            default="0.35,0.35,0.35,0.35",
            show_default=True,
            metavar="CORES,...",
            help="The CPU share of each worker.",
        ),
        click.option(
            "--iterations", type=click.IntRange(20), default=300, show_default=True, help="Of each worker."
        ),
        click.option(
            "--settle",
            type=click.IntRange(0),
            default=5,
            show_default=True,
            help="First iterations, left out of means and errors.",
        ),
        click.option(
            "--batch-size",
            type=click.IntRange(1),
            default=None,
            help="Over all workers.  [default: by workload]",
        ),
        click.option(
            "--schedule",
            type=click.Path(path_type=Path, exists=True, dir_okay=False),
            default=None,
            help="Who is disturbed when: worker,start,end,cpu,memory.  [default: at random]",
        ),
        click.option(
            "--unit",
            type=click.Choice(("iterations", "seconds")),
            default="iterations",
            show_default=True,
            help="Of --schedule's times.",
        ),
        click.option(
            "--usage",
            type=click.Path(path_type=Path, exists=True, dir_okay=False),
            default=None,
            help="Disturb as machines were used: vm,step,cpu_percent,mem_percent.",
        ),
        click.option(
            "--step-seconds",
            type=click.FloatRange(0, min_open=True),
            default=5.0,
            show_default=True,
            help="How long a step of --usage lasts here.",
        ),
        click.option(
            "--machines", default=None, metavar="NAME,...", help="Of --usage.  [default: at random]"
        ),
        click.option(
            "--contended",
            default=None,
            metavar="RANK,...",
            help="Workers that are disturbed at random.  [default: all]",
        ),
        click.option(
            "--phases",
            type=(click.IntRange(1), click.IntRange(1)),
            default=(20, 60),
            show_default=True,
            metavar="SHORTEST LONGEST",
            help="Iterations that random contention is on, or off.",
        ),
        click.option("--seed", type=click.IntRange(0), default=1, show_default=True),
        option(PredictorOptions, "first_fit", 100),
        option(PredictorOptions, "refit_every"),
        click.option(
            "--reuse",
            type=click.Path(path_type=Path, exists=True),
            default=None,
            help="Start predictors from kept models: a file, or a folder of them.",
        ),
        option(PolicyOptions, "tolerance", TOLERANCE),
        click.option(
            "--target",
            type=click.FloatRange(0, 1),
            default=None,
            help="Accuracy that is to be reached.  [default: 98% of BSP's]",
        ),
        click.option(
            "--memory-mib",
            type=click.IntRange(1),
            default=256,
            show_default=True,
            help="What a schedule's shares of memory refer to.",
        ),
        limit_kind,
        click.option(
            "--containers", is_flag=True, help="Run each part in a container; see docs/containers.md."
        ),
        ps_shards,
        click.argument("arguments", nargs=-1, type=click.UNPROCESSED),
    ]
    for add in reversed(options):
        function = add(function)
    return function


@click.group()
def experiment() -> None:
    """Train under contention, and compare schemes; the paper's table and figures on this machine."""


@experiment.command()
@example("evenpace experiment contention --schemes bsp,lb-bsp:ema,lb-bsp:auto --iterations 300")
@click.option("--workload", type=click.Choice(list(BATCH_SIZES)), default="cifarnet", show_default=True)
@click.option(
    "--schemes",
    default=_SCHEMES,
    show_default=True,
    metavar="NAME,...",
    help="bsp, asp, ssp, redundant, flexrr, lb-bsp:PREDICTOR.",
)
@out_folder("contention")
@_run_options
def contention(workload: str, schemes: str, out: Path, **options: Any) -> None:
    """Train with each scheme while stress-ng competes with the workers, on the same schedule.

    ARGUMENTS after -- are the workload's own, as its script in examples/ takes them.
    """
    from rich.console import Console

    from evenpace.lab.experiments import comparison
    from evenpace.lab.experiments.schemes import choose_schemes

    with user_mistakes():
        chosen = choose_schemes(schemes)
        figures = _compare(workload, chosen, out, **options)
    comparison.print_table(figures, Console())
    _say_where(out)


@experiment.command()
@example("evenpace experiment table3 --iterations 600 --first-fit 200")
@click.option("--workload", type=click.Choice(list(BATCH_SIZES)), default="resnet32", show_default=True)
@out_folder("table3")
@_run_options
def table3(workload: str, out: Path, **options: Any) -> None:
    """Table 3 of LB-BSP: prediction approaches by their error and by the iteration time they give."""
    from rich.console import Console

    from evenpace.lab.experiments import paper

    with user_mistakes():
        figures = _compare(workload, paper.table3_schemes(), out, **options)
    paper.print_table3(figures, Console())
    _say_where(out)


@experiment.command()
@example("evenpace experiment fig9 --workloads svm,resnet32")
@click.option("--workloads", default="svm,resnet32", show_default=True, metavar="NAME,...")
@out_folder("fig9")
@_run_options
def fig9(workloads: str, out: Path, **options: Any) -> None:
    """Figure 9 of LB-BSP: iteration times of the competing schemes."""
    from rich.console import Console

    from evenpace.lab.experiments import paper

    for workload in workloads.split(","):
        with user_mistakes():
            figures = _compare(workload, paper.figure9_schemes(), out / workload, **options)
        paper.print_figure9(figures, Console())
    _say_where(out)


@experiment.command()
@example("evenpace experiment fig10 --workload resnet32")
@click.option("--workload", type=click.Choice(list(BATCH_SIZES)), default="resnet32", show_default=True)
@out_folder("fig10")
@_run_options
def fig10(workload: str, out: Path, **options: Any) -> None:
    """Figure 10 of LB-BSP: a worker's speed and what NARX predicts of it; see prediction.png."""
    from rich.console import Console

    from evenpace.lab.experiments import comparison, paper

    with user_mistakes():
        figures = _compare(workload, paper.figure10_schemes(), out, **options)
    comparison.print_table(figures, Console())
    click.echo("The paper's RMSE with NARX is 0.61 of the moving average's (Table 3).")
    _say_where(out)


@experiment.command()
@example("evenpace experiment fig11 --workers 32,64,96 --predictor auto")
@click.option("--workers", default="32,64,96", show_default=True, metavar="COUNT,...")
@click.option("--iterations", type=click.IntRange(20), default=600, show_default=True)
@option(PolicyOptions, "predictor", "auto")
@option(PredictorOptions, "first_fit", 200)
@option(PredictorOptions, "refit_every")
@json_path
def fig11(
    workers: str, iterations: int, predictor: str, first_fit: int, refit_every: int, json_path: Path | None
) -> None:
    """Figure 11 of LB-BSP: what balancing costs, with simulated workers over real connections."""
    from evenpace.lab.experiments.overhead import run

    with user_mistakes():
        counts = whole_numbers("workers", workers, 1)
    run(counts, iterations, predictor, first_fit, refit_every, json_path)


def _compare(
    workload: str,
    schemes: Any,
    out: Path,
    *,
    shares: str,
    iterations: int,
    settle: int,
    batch_size: int | None,
    schedule: Path | None,
    unit: Any,
    usage: Path | None,
    step_seconds: float,
    machines: str | None,
    contended: str | None,
    phases: tuple[int, int],
    seed: int,
    first_fit: int,
    refit_every: int,
    reuse: Path | None,
    tolerance: float,
    target: float | None,
    memory_mib: int,
    limit_kind: Any,
    containers: bool,
    ps_shards: int,
    arguments: tuple[str, ...],
) -> dict[str, Any]:
    from evenpace.lab.experiments import contention_schedule as schedules
    from evenpace.lab.experiments.comparison import Evaluator, compare
    from evenpace.lab.experiments.containers import require_engine
    from evenpace.lab.experiments.contended import ContendedConfig
    from evenpace.lab.fields import parse_shares
    from evenpace.lab.workloads.by_name import Training

    if containers:
        require_engine()
    if settle > iterations - 2:
        raise ValueError(f"settle {settle}: must leave at least two of {iterations} iterations")
    cores = parse_shares(shares)
    workers = len(cores) + max(scheme.backup_workers for scheme in schemes)
    if schedule is not None and usage is not None:
        raise ValueError("--schedule and --usage: give one of them")
    if schedule is not None:
        plan = schedules.read_schedule(schedule, unit)
    elif usage is not None:
        names = machines.split(",") if machines else None
        plan = schedules.trace_schedule(usage, workers, step_seconds, seed, names)
    else:
        ranks = whole_numbers("contended", contended, 0) if contended else range(workers)
        plan = schedules.random_schedule(ranks, iterations, seed, *phases)
    plan.check_workers(workers)
    training = Training(workload, arguments)
    evaluator = Evaluator(training)
    total = batch_size or BATCH_SIZES[workload]
    if total > evaluator.samples:
        raise ValueError(f"batch size {total}: {workload} has {evaluator.samples} samples to train on")
    config = ContendedConfig(
        training=training,
        elements=evaluator.elements,
        shares=cores,
        iterations=iterations,
        settle=settle,
        total_batch_size=total,
        schedule=plan,
        memory_bytes=memory_mib * 2**20,
        first_fit=first_fit,
        refit_every=refit_every,
        tolerance=tolerance,
        reuse=reuse,
        limit_kind=limit_kind,
        shards=ps_shards,
        containers=containers,
        out=out,
    )
    return compare(schemes, config, evaluator, target)


def _say_where(out: Path) -> None:
    click.echo(f"Report, tables and plots: {out}")
