"""`evenpace lab experiment`: contention, competing schemes, and the paper's table and figures."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from batchsize_manager.policies import PolicyOptions
from evenpace.cli.options import example, json_path, user_mistakes
from evenpace.cli.settings import configured, option
from lab.commands.options import plot_path
from lab.experiments.config import (
    ContendedOptions,
    ForecastConfig,
    NoiseConfig,
    NoiseTrainingConfig,
    SizersConfig,
)
from lab.experiments.scheduling_config import (
    AutoscalingConfig,
    ElasticityConfig,
    EpochScalingConfig,
)
from lab.fields import whole_numbers
from predictors import PredictorOptions

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


def _contended(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the options of every experiment under contention; its files go to a folder `name`."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        function = click.argument("arguments", nargs=-1, type=click.UNPROCESSED)(function)
        return configured(ContendedOptions, "options", out=Path("runs") / name)(function)

    return add


@click.group()
def experiment() -> None:
    """Train under contention, and compare schemes; the paper's table and figures on this machine."""


@experiment.command()
@example("evenpace lab experiment contention --schemes bsp,lb-bsp:ema,lb-bsp:auto --iterations 300")
@click.option("--workload", type=click.Choice(list(BATCH_SIZES)), default="cifarnet", show_default=True)
@click.option(
    "--schemes",
    default=_SCHEMES,
    show_default=True,
    metavar="NAME,...",
    help="bsp, asp, ssp, redundant, flexrr, lb-bsp:PREDICTOR.",
)
@_contended("contention")
def contention(workload: str, schemes: str, options: ContendedOptions, arguments: tuple[str, ...]) -> None:
    """Train with each scheme while stress-ng competes with the workers, on the same schedule.

    ARGUMENTS after -- are the workload's own options, as lab/experiments/train_workload.py takes them.
    """
    from rich.console import Console

    from lab.experiments import comparison
    from lab.experiments.schemes import choose_schemes

    with user_mistakes():
        chosen = choose_schemes(schemes)
        figures = _compare(workload, chosen, options, arguments)
    comparison.print_table(figures, Console())
    _say_where(options.out)


@experiment.command()
@example("evenpace lab experiment table3 --iterations 600 --first-fit 200")
@click.option("--workload", type=click.Choice(list(BATCH_SIZES)), default="resnet32", show_default=True)
@_contended("table3")
def table3(workload: str, options: ContendedOptions, arguments: tuple[str, ...]) -> None:
    """Table 3 of LB-BSP: prediction approaches by their error and by the iteration time they give."""
    from rich.console import Console

    from lab.experiments import paper

    with user_mistakes():
        figures = _compare(workload, paper.table3_schemes(), options, arguments)
    paper.print_table3(figures, Console())
    _say_where(options.out)


@experiment.command()
@example("evenpace lab experiment fig9 --workloads svm,resnet32")
@click.option("--workloads", default="svm,resnet32", show_default=True, metavar="NAME,...")
@_contended("fig9")
def fig9(workloads: str, options: ContendedOptions, arguments: tuple[str, ...]) -> None:
    """Figure 9 of LB-BSP: iteration times of the competing schemes."""
    from rich.console import Console

    from lab.experiments import paper

    for workload in workloads.split(","):
        part = replace(options, out=options.out / workload)
        with user_mistakes():
            figures = _compare(workload, paper.figure9_schemes(), part, arguments)
        paper.print_figure9(figures, Console())
    _say_where(options.out)


@experiment.command()
@example("evenpace lab experiment fig10 --workload resnet32")
@click.option("--workload", type=click.Choice(list(BATCH_SIZES)), default="resnet32", show_default=True)
@_contended("fig10")
def fig10(workload: str, options: ContendedOptions, arguments: tuple[str, ...]) -> None:
    """Figure 10 of LB-BSP: a worker's speed and what NARX predicts of it; see prediction.png."""
    from rich.console import Console

    from lab.experiments import comparison, paper

    with user_mistakes():
        figures = _compare(workload, paper.figure10_schemes(), options, arguments)
    comparison.print_table(figures, Console())
    click.echo("The paper's RMSE with NARX is 0.61 of the moving average's (Table 3).")
    _say_where(options.out)


@experiment.command()
@example("evenpace lab experiment fig11 --workers 32,64,96 --predictor auto")
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
    from lab.experiments.overhead import run

    with user_mistakes():
        counts = whole_numbers("workers", workers, 1)
    run(counts, iterations, predictor, first_fit, refit_every, json_path)


@experiment.command()
@example("evenpace lab experiment virtualflow --curves throughput.csv")
@click.option(
    "--curves",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    default=None,
    help="VirtualFlow's published profiles, a CSV with model,gpu,batch_size,examples_per_s.",
)
@json_path
def virtualflow(curves: Path | None, json_path: Path | None) -> None:
    """Table 4 of VirtualFlow: splits over unlike GPUs, and their gains; nothing is trained."""
    from rich.console import Console

    from lab.experiments.virtualflow import run

    with user_mistakes():
        run(curves, Console(), json_path)


@experiment.command()
@example("evenpace lab experiment noise --batches 8,16,32,200 --draws 40000")
@configured(NoiseConfig, "config")
@configured(NoiseTrainingConfig, "training")
@plot_path("Draw a training, a PNG file.")
@json_path
def noise(
    config: NoiseConfig, training: NoiseTrainingConfig, json_path: Path | None, plot_path: Path | None
) -> None:
    """Estimates of the gradient noise from uneven batches, ours and Cannikin's.

    Gradients are drawn, with a noise that is known. With --train a network is trained as well, and looked at
    again and again: what single samples' gradients say is the truth there.
    """
    from rich.console import Console

    from lab.experiments.noise import run

    with user_mistakes():
        run(config, Console(), json_path, training, plot_path)


@experiment.command("batch-sizes")
@example("evenpace lab experiment batch-sizes --data mlperf.csv --plot batch-sizes.png")
@click.option(
    "--data",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="Trainings: a CSV with benchmark,batch_size,runs,mean_to_target,std.",
)
@plot_path("Draw points and law, a PNG file.")
@json_path
def batch_sizes(data: Path, json_path: Path | None, plot_path: Path | None) -> None:
    """How much work trainings need with batches of each size, and how well a law foresees it.

    The law is W0 (1 + B/B_c); each size is predicted from all others of its benchmark. Nothing is trained.
    """
    from rich.console import Console

    from lab.experiments.batch_sizes import run

    with user_mistakes():
        run(data, Console(), json_path, plot_path)


@experiment.command("forecast")
@example("evenpace lab experiment forecast --data traces --horizons 1,5,10")
@configured(ForecastConfig, "config")
@plot_path("Draw the errors, a PNG file.")
@json_path
def forecast(config: ForecastConfig, json_path: Path | None, plot_path: Path | None) -> None:
    """Forecasts of the next epochs' noise scale, and so of batch sizes, against the last epoch's.

    The noise scales are measured ones, of other people's trainings: in --data is a folder for each model,
    with files of grad_sqr and grad_var by epoch. Nothing is trained.
    """
    from rich.console import Console

    from lab.experiments.forecasts import run

    with user_mistakes():
        run(config, Console(), json_path, plot_path)


@experiment.command()
@example("evenpace lab experiment sizers --seeds 1,2,3 --plot sizers.png")
@configured(SizersConfig, "config")
@plot_path("Draw losses and sizes against the time, a PNG file.")
@json_path
def sizers(config: SizersConfig, json_path: Path | None, plot_path: Path | None) -> None:
    """Time to a loss with batches of a fixed size, and with sizes that follow the gradient noise.

    A network of one hidden layer is trained from the same start by local workers, once for each SIZER:RULE.
    """
    from rich.console import Console

    from lab.experiments.sizers import run

    with user_mistakes():
        run(config, Console(), json_path, plot_path)


@experiment.command()
@example("evenpace lab experiment elasticity --traces pollux --seeds 1,2,3,4,5")
@configured(ElasticityConfig, "config")
@json_path
def elasticity(config: ElasticityConfig, json_path: Path | None) -> None:
    """Figures 10 to 12 of VirtualFlow: jobs with priorities on a cluster, with and without resizing.

    The jobs are simulated with step times that were measured; nothing is trained.
    """
    from rich.console import Console

    from lab.experiments.elasticity import run

    with user_mistakes():
        run(config, Console(), json_path)


@experiment.command()
@example("evenpace lab experiment autoscaling --traces pollux --plot autoscaling.png")
@configured(AutoscalingConfig, "config")
@plot_path("Draw nodes and efficiency against the time, a PNG file.")
@json_path
def autoscaling(config: AutoscalingConfig, json_path: Path | None, plot_path: Path | None) -> None:
    """Figure 9 of Pollux: nodes for one job by goodput, and by throughput.

    The job is simulated with step times and gradient noise that were measured; nothing is trained.
    """
    from rich.console import Console

    from lab.experiments.autoscaling import run

    with user_mistakes():
        run(config, Console(), json_path, plot_path)


@experiment.command("epoch-scaling")
@example("evenpace lab experiment epoch-scaling --traces pollux")
@configured(EpochScalingConfig, "config")
@json_path
def epoch_scaling(config: EpochScalingConfig, json_path: Path | None) -> None:
    """Figure 13b of JABAS: nodes for each epoch by the forecast batch size, and by the last one.

    Jobs are simulated with step times and gradient noise that were measured; nothing is trained.
    """
    from rich.console import Console

    from lab.experiments.epoch_scaling import run

    with user_mistakes():
        run(config, Console(), json_path)


def _compare(
    workload: str, schemes: Any, options: ContendedOptions, arguments: tuple[str, ...]
) -> dict[str, Any]:
    from lab.experiments.comparison import Evaluator, compare
    from lab.experiments.containers import require_engine
    from lab.experiments.contended import ContendedConfig
    from lab.workloads.by_name import Training

    if options.containers:
        require_engine()
    workers = len(options.shares) + max(scheme.backup_workers for scheme in schemes)
    schedule = options.disturbance.schedule(workers, options.iterations, options.seed)
    training = Training(workload, arguments)
    evaluator = Evaluator(training)
    total = options.batch_size or BATCH_SIZES[workload]
    if total > evaluator.samples:
        raise ValueError(f"batch size {total}: {workload} has {evaluator.samples} samples to train on")
    config = ContendedConfig(
        **vars(options),
        training=training,
        elements=evaluator.elements,
        total_batch_size=total,
        schedule=schedule,
    )
    return compare(schemes, config, evaluator)


def _say_where(out: Path) -> None:
    click.echo(f"Report, tables and plots: {out}")
