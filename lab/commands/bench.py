"""`evenpace lab bench`: measurements of evenpace itself."""

from dataclasses import replace
from pathlib import Path
from typing import get_args

import click

from evenpace.cli.options import example, json_path, user_mistakes
from evenpace.cli.settings import configured, option
from idl.exchange import ExchangeName
from lab.bench.config import (
    BalanceConfig,
    Change,
    GroupChangesConfig,
    MicroBatchesConfig,
    NodesConfig,
    OverlapConfig,
    RecoveryConfig,
    ShardsConfig,
    SizesConfig,
    SpotConfig,
    TrainConfig,
)
from lab.commands.options import refuse_given
from lab.fields import whole_numbers
from predictors import PREDICTORS, PredictorOptions


@click.group()
def bench() -> None:
    """Measure evenpace on this machine."""


@bench.command("rpc")
@example("evenpace lab bench rpc --workers 1000 --rounds 100 --json rpc.json")
@click.option(
    "--workers", type=click.IntRange(1, 5000), default=1000, show_default=True, help="Each with a connection."
)
@click.option(
    "--rounds",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="Barrier rounds, after a warm-up.",
)
@click.option("--tls", is_flag=True, help="Measure with TLS, too.")
@json_path
def bench_rpc(workers: int, rounds: int, tls: bool, json_path: Path | None) -> None:
    """Time barrier rounds of the manager, and of thriftpy2's threaded server doing the same."""
    from lab.bench.barrier_rounds import run

    run(workers, rounds, json_path, tls=tls)


@bench.command("ps")
@example("evenpace lab bench ps --mib 100 --json ps.json")
@configured(ShardsConfig, "config")
@click.option("--tls", is_flag=True, help="Measure with TLS, too.")
@click.option(
    "--shards",
    is_flag=False,
    flag_value=",".join(map(str, ShardsConfig.shards)),
    default=None,
    metavar="[COUNT,...]",
    help="Measure several shards instead, each behind a link of --rate, which takes root and iproute2.  "
    "[without a value: 1,2,4]",
)
@json_path
def bench_ps(config: ShardsConfig, tls: bool, shards: str | None, json_path: Path | None) -> None:
    """Time push and pull of the parameter server.

    They are measured beside those of bare sockets and of thriftpy2's binary argument; with --shards, over
    links of limited bandwidth, beside the time that the links allow.
    """
    if shards is None:
        from lab.bench import transfers

        transfers.run(config.mib, config.repeats, json_path, tls=tls)
        return
    if tls:
        raise click.UsageError("--tls: is measured without --shards")
    with user_mistakes():
        from lab.bench.sharded_transfers import run

        run(replace(config, shards=whole_numbers("shards", shards, 1)), json_path)


@bench.command("overlap")
@example("evenpace lab bench overlap --rate 100 --json overlap.json")
@configured(OverlapConfig, "config")
@json_path
def bench_overlap(config: OverlapConfig, json_path: Path | None) -> None:
    """Time iterations whose gradients are pushed by the step, and while the backward pass runs.

    Shards are behind links of limited bandwidth, which takes root and iproute2.
    """
    from lab.bench.overlap import run

    run(config, json_path)


@bench.command("recovery")
@example("evenpace lab bench recovery --repeats 3 --json recovery.json")
@click.option(
    "--with",
    "exchange",
    type=click.Choice(get_args(ExchangeName)),
    default="parameter-server",
    show_default=True,
    help="How the workers' gradients meet.",
)
@configured(RecoveryConfig, "config")
@configured(GroupChangesConfig, "groups", without=("workers", "repeats"))
@json_path
@click.pass_context
def bench_recovery(
    context: click.Context,
    exchange: ExchangeName,
    config: RecoveryConfig,
    groups: GroupChangesConfig,
    json_path: Path | None,
) -> None:
    """Measure what deaths, freezes and broken connections cost a job.

    For each, how long no step was taken, beyond what one takes, and how many were done again. With
    all-reduce: what workers that join, are drained and are killed cost the others, and what a group that the
    manager forms costs beside stock DDP while nothing changes.
    """
    of_shards, of_groups = (
        ("shards", "away", "checkpoint_every"),
        ("parameters", "batch_size", "turns", "changes"),
    )
    refuse_given(context, of_groups if exchange == "parameter-server" else of_shards, exchange)
    if exchange == "all-reduce":
        with user_mistakes():
            from lab.bench.group_changes import run as run_all_reduce

            run_all_reduce(replace(groups, workers=config.workers, repeats=config.repeats), json_path)
        return
    from lab.bench.recovery import run

    run(config, json_path)


@bench.command("sizes")
@example("evenpace lab bench sizes --repeats 5 --json sizes.json")
@configured(SizesConfig, "config")
@json_path
def bench_sizes(config: SizesConfig, json_path: Path | None) -> None:
    """Measure what a change of the batch size costs a job.

    Iterations with a change are compared with others without, all of them first of their epochs; the floor
    compares two groups without. With a lookahead, those in which such plans are made are compared, too.
    """
    with user_mistakes():
        from lab.bench.size_changes import run

        run(config, json_path)


@bench.command("sizers")
@example("evenpace lab bench sizers --workers 1000 --json sizers.json")
@click.option("--workers", type=click.IntRange(1, 5000), default=1000, show_default=True, help="Of the job.")
@click.option(
    "--iterations",
    type=click.IntRange(10),
    default=100,
    show_default=True,
    help="That are planned, after a warm-up.",
)
@json_path
def bench_sizers(workers: int, iterations: int, json_path: Path | None) -> None:
    """Time how long the manager takes to plan an iteration, by the sizer that chooses its size."""
    from lab.bench.sizer_times import run

    run(workers, iterations, json_path)


@bench.command("nodes")
@example("evenpace lab bench nodes --repeats 3 --silence 3 --json nodes.json")
@configured(NodesConfig, "config")
@json_path
def bench_nodes(config: NodesConfig, json_path: Path | None) -> None:
    """Measure what the loss of nodes costs a job on Ray.

    For each, how long no step was taken, beyond what one takes, and how many were done again. The nodes are
    on this machine. The status is 1 where the parameters at the end are not those of one process.
    """
    with user_mistakes():
        from lab.bench.node_losses import run

        figures = run(config, json_path)
    if not figures["equal"]:
        raise click.ClickException("the parameters are not those of one process")


@bench.command("spot")
@example("evenpace lab bench spot --trace p3-events.csv --nodes 4 --minutes 10 --json spot.json")
@configured(SpotConfig, "config")
@json_path
def bench_spot(config: SpotConfig, json_path: Path | None) -> None:
    """Measure what share of a spot market's nodes a job on Ray makes use of.

    Nodes on this machine join and are lost as those of the trace did, in less time. Each has a worker, whose
    samples take a made-up time, so that their capacity is known. The services are on a node that stays. The
    status is 1 where the parameters at the end are not those of one process.
    """
    with user_mistakes():
        from lab.bench.spot_market import run

        figures = run(config, json_path)
    if not figures["equal"]:
        raise click.ClickException("the parameters are not those of one process")


@bench.command("predictors")
@example("evenpace lab bench predictors --trace trace.csv --json predictors.json")
@click.option(
    "--trace",
    "trace_path",
    type=click.Path(path_type=Path),
    default=None,
    help="From `evenpace lab trace`.  [default: contention that comes and goes]",
)
@json_path
@click.option(
    "--predictor",
    "names",
    type=click.Choice(list(PREDICTORS)),
    multiple=True,
    help="Beside ema; may be repeated.  [default: all]",
)
@option(PredictorOptions, "first_fit")
@option(PredictorOptions, "refit_every")
@click.option(
    "--warm-up",
    type=click.IntRange(0),
    default=None,
    help="Iterations of each worker that do not count.  [default: those before the first fit]",
)
@click.option(
    "--timing/--no-timing", default=True, show_default=True, help="Measure times, too, on made-up speeds."
)
@click.option(
    "--timing-workers",
    default="1,96,1000",
    show_default=True,
    metavar="COUNT,...",
    help="For so many workers each.",
)
def bench_predictors(
    trace_path: Path | None,
    json_path: Path | None,
    names: tuple[str, ...],
    first_fit: int,
    refit_every: int,
    warm_up: int | None,
    timing: bool,
    timing_workers: str,
) -> None:
    """Compare predictors of speeds on a trace, and time them.

    Each predictor names every iteration's speeds before it sees them. Its error is compared with that of
    the moving average, ema, and with the noise floor where the trace has it.
    """
    with user_mistakes():
        from lab.bench.predictor_errors import run

        options = PredictorOptions(first_fit=first_fit, refit_every=refit_every)
        counts = whole_numbers("timing-workers", timing_workers, 1) if timing else ()
        run(trace_path, names, options, warm_up, counts, json_path)


@bench.command("micro-batches")
@example("evenpace lab bench micro-batches --iterations 30 --json micro-batches.json")
@configured(MicroBatchesConfig, "config")
@json_path
def bench_micro_batches(config: MicroBatchesConfig, json_path: Path | None) -> None:
    """Measure what computing in micro-batches costs, against plain accumulation in PyTorch.

    Both take the same micro-batches in turns, in one process: the throughput of the loop over them, and with
    the step, which ours has at a parameter server. Memory is that of training on single micro-batches.
    """
    with user_mistakes():
        from lab.bench.micro_batches import run

        run(config, json_path)


@bench.command("train")
@example("evenpace lab bench train --against ddp --shares 0.8,0.4,0.2,0.1 --json train.json")
@click.option(
    "--against",
    type=click.Choice(("ddp",)),
    default="ddp",
    show_default=True,
    help="torch's DistributedDataParallel on gloo, with an even split.",
)
@configured(TrainConfig, "config")
@json_path
def bench_train(against: str, config: TrainConfig, json_path: Path | None) -> None:
    """Train by stock DDP, by evenpace with all-reduce and with a parameter server, and compare times.

    Model, data, batches and iterations are the same. The trainings take turns on workers with CPU limits.
    """
    with user_mistakes():
        from lab.bench.against_ddp import run

        run(config, json_path)


@bench.command("balance")
@example("evenpace lab bench balance --curves step_times.csv --seeds 10 --json balance.json")
@configured(BalanceConfig, "config")
@click.option(
    "--change",
    "changes",
    multiple=True,
    metavar="ITERATION:WORKER:FACTOR",
    help="From then on it takes FACTOR times as long as measured; may be repeated, `none` for no change.  "
    "[default: the worker with most samples takes twice as long from the middle on]",
)
@json_path
@click.option(
    "--plot", "plot_path", type=click.Path(path_type=Path), default=None, help="Draw a picture, a PNG file."
)
def bench_balance(
    config: BalanceConfig, changes: tuple[str, ...], json_path: Path | None, plot_path: Path | None
) -> None:
    """Play balancing policies against measured step times, with noise and changes of speed.

    The workers of a GPU that comes twice are called GPU and GPU-2. All figures are relative to the best
    split, which is found from the measurements.
    """
    with user_mistakes():
        from lab.bench.balance import run

        run(replace(config, changes=_schedule(changes)) if changes else config, json_path, plot_path)


@bench.command("solver")
@example("evenpace lab bench solver --devices 64 --micro-batches 2592")
@click.option("--devices", type=click.IntRange(1), default=64, show_default=True, help="All different.")
@click.option(
    "--micro-batches", type=click.IntRange(1), default=2592, show_default=True, help="Of the whole batch."
)
@click.option("--repeats", type=click.IntRange(1), default=20, show_default=True, help="Splits of each kind.")
@json_path
def bench_solver(devices: int, micro_batches: int, repeats: int, json_path: Path | None) -> None:
    """Time how long it takes to split a batch, by the kind of devices' time curves."""
    from lab.bench.solver_times import run

    with user_mistakes():
        run(devices, micro_batches, repeats, json_path)


@bench.command("noise")
@example("evenpace lab bench noise --json noise-cost.json")
@click.option("--repeats", type=click.IntRange(1), default=9, show_default=True, help="Of each figure.")
@click.option("--adam", is_flag=True, help="Precondition the gradients, as with Adam.")
@json_path
def bench_noise(repeats: int, adam: bool, json_path: Path | None) -> None:
    """Time what it costs to measure the gradient noise, beside an iteration.

    Of ResNet-32 and of the transformer, with 32 samples on one core.
    """
    from lab.bench.noise_cost import run

    run(repeats, json_path, adam=adam)


def _schedule(texts: tuple[str, ...]) -> tuple[Change, ...]:
    """Read the values of `--change` (ValueError: a value is not of the form that the option's help gives)."""
    if texts == ("none",):
        return ()
    changes = []
    for text in texts:
        iteration, _, rest = text.partition(":")
        worker, _, factor = rest.rpartition(":")
        try:
            changes.append(Change(int(iteration), worker, float(factor)))
        except ValueError as error:
            raise ValueError(
                f"change {text!r}: give ITERATION:WORKER:FACTOR, as in 150:V100:2 ({error})"
            ) from error
    return tuple(changes)
