"""`evenpace bench`: measurements of evenpace itself."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from batchsize_manager.config import TOLERANCE
from batchsize_manager.policies import POLICIES, PolicyOptions
from evenpace.cli.options import example, json_path, limit_kind, user_mistakes
from evenpace.cli.settings import option
from evenpace.cli.values import whole_numbers
from predictors import PREDICTORS, PredictorOptions

if TYPE_CHECKING:
    from evenpace.lab.bench.balance_play import Change


@click.group()
def bench() -> None:
    """Measure evenpace on this machine."""


@bench.command("rpc")
@example("evenpace bench rpc --workers 1000 --rounds 100 --json rpc.json")
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
    from evenpace.lab.bench.barrier_rounds import run

    run(workers, rounds, json_path, tls=tls)


@bench.command("ps")
@example("evenpace bench ps --mib 100 --json ps.json")
@click.option(
    "--mib", type=click.IntRange(1, 1900), default=100, show_default=True, help="Size of the gradient."
)
@click.option(
    "--repeats", type=click.IntRange(1), default=9, show_default=True, help="Medians are over these."
)
@click.option("--tls", is_flag=True, help="Measure with TLS, too.")
@click.option(
    "--shards",
    is_flag=False,
    flag_value="1,2,4",
    default=None,
    metavar="[COUNT,...]",
    help="Measure several shards instead, each behind a link of --rate, which takes root and iproute2.  "
    "[without a value: 1,2,4]",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 100),
    default=3,
    show_default=True,
    help="With --shards: all push, and pull, at once.",
)
@click.option(
    "--rate",
    type=click.FloatRange(0, 1e5, min_open=True, max_open=True),
    default=100.0,
    show_default=True,
    help="With --shards: MB/s of each link, each way.",
)
@json_path
def bench_ps(
    mib: int,
    repeats: int,
    tls: bool,
    shards: str | None,
    workers: int,
    rate: float,
    json_path: Path | None,
) -> None:
    """Time push and pull of the parameter server.

    They are measured beside those of bare sockets and of thriftpy2's binary argument; with --shards, over
    links of limited bandwidth, beside the time that the links allow.
    """
    if shards is None:
        from evenpace.lab.bench import transfers

        transfers.run(mib, repeats, json_path, tls=tls)
        return
    if tls:
        raise click.UsageError("--tls: is measured without --shards")
    with user_mistakes():
        from evenpace.lab.bench.sharded_transfers import ShardsConfig, run

        run(ShardsConfig(whole_numbers("shards", shards, 1), workers, mib, rate, repeats), json_path)


@bench.command("recovery")
@example("evenpace bench recovery --repeats 3 --json recovery.json")
@click.option("--workers", type=click.IntRange(2), default=3, show_default=True, help="Of the job.")
@click.option(
    "--shards", type=click.IntRange(1), default=2, show_default=True, help="Of the parameter server."
)
@click.option(
    "--away",
    type=click.FloatRange(0),
    default=1.0,
    show_default=True,
    help="Seconds after which a killed process is started again, or one that vanished is back.",
)
@click.option(
    "--checkpoint-every", type=click.IntRange(1), default=20, show_default=True, help="Versions, at a shard."
)
@click.option(
    "--repeats", type=click.IntRange(1), default=3, show_default=True, help="Medians are over these."
)
@json_path
def bench_recovery(
    workers: int, shards: int, away: float, checkpoint_every: int, repeats: int, json_path: Path | None
) -> None:
    """Measure what deaths, freezes and broken connections cost a job.

    For each, how long no step was taken, beyond what one takes, and how many were done again.
    """
    from evenpace.lab.bench.recovery import RecoveryConfig, run

    run(RecoveryConfig(workers, shards, away, checkpoint_every, repeats), json_path)


@bench.command("predictors")
@example("evenpace bench predictors --trace trace.csv --json predictors.json")
@click.option(
    "--trace",
    "trace_path",
    type=click.Path(path_type=Path),
    default=None,
    help="From `evenpace trace`.  [default: contention that comes and goes]",
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
    "--plot", "plot_path", type=click.Path(path_type=Path), default=None, help="Draw a picture, a PNG file."
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
    plot_path: Path | None,
    timing: bool,
    timing_workers: str,
) -> None:
    """Compare predictors of speeds on a trace, and time them.

    Each predictor names every iteration's speeds before it sees them. Its error is compared with that of
    the moving average, ema, and with the noise floor where the trace has it.
    """
    with user_mistakes():
        from evenpace.lab.bench.predictor_errors import run

        options = PredictorOptions(first_fit=first_fit, refit_every=refit_every)
        counts = whole_numbers("timing-workers", timing_workers, 1) if timing else ()
        run(trace_path, names, options, warm_up, counts, json_path, plot_path)


@bench.command("train")
@example("evenpace bench train --against ddp --shares 0.8,0.4,0.2,0.1 --json train.json")
@click.option(
    "--against",
    type=click.Choice(("ddp",)),
    default="ddp",
    show_default=True,
    help="torch's DistributedDataParallel on gloo, with an even split.",
)
@click.option(
    "--shares",
    default="0.8,0.4,0.2,0.1",
    show_default=True,
    metavar="CORES,...",
    help="The CPU share of each worker.",
)
@click.option("--data", default="digits", show_default=True, metavar="digits|mnist:DIR|cifar10:DIR")
@click.option("--epochs", type=click.IntRange(1), default=15, show_default=True, help="Passes over the data.")
@click.option(
    "--batch-size", type=click.IntRange(1), default=716, show_default=True, help="Over all workers."
)
@click.option(
    "--repeats", type=click.IntRange(1), default=3, show_default=True, help="Medians are over these."
)
@click.option(
    "--target-accuracy", type=click.FloatRange(0, 1), default=0.9, show_default=True, help="On the test set."
)
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True)
@limit_kind
@json_path
def bench_train(
    against: str,
    shares: str,
    data: str,
    epochs: int,
    batch_size: int,
    repeats: int,
    target_accuracy: float,
    seed: int,
    limit_kind: Any,
    json_path: Path | None,
) -> None:
    """Train by stock DDP, by evenpace with all-reduce and with a parameter server, and compare times.

    Model, data, batches and iterations are the same. The trainings take turns on workers with CPU limits.
    """
    with user_mistakes():
        from evenpace.lab.bench.against_ddp import TrainConfig, run

        config = TrainConfig.from_options(
            shares=shares,
            data=data,
            epochs=epochs,
            total_batch_size=batch_size,
            repeats=repeats,
            target_accuracy=target_accuracy,
            seed=seed,
            limit_kind=limit_kind,
        )
        run(config, json_path)


@bench.command("balance")
@example("evenpace bench balance --curves step_times.csv --seeds 10 --json balance.json")
@click.option(
    "--curves",
    type=click.Path(path_type=Path),
    default=None,
    help="CSV: model,gpu,batch_size,step_time_s (or examples_per_s).  [default: made-up curves]",
)
@json_path
@click.option(
    "--policy", "policies", type=click.Choice(list(POLICIES)), multiple=True, help="May be repeated."
)
@click.option(
    "--model", "models", multiple=True, help="May be repeated.  [default: all measured on several GPUs]"
)
@click.option(
    "--gpus",
    default="",
    metavar="GPU,...",
    help="Of the cluster; the same one may come twice.  [default: each that the model was measured on]",
)
@click.option(
    "--total",
    "totals",
    type=click.IntRange(1),
    multiple=True,
    help="Samples of the whole batch; may be repeated.  [default: half of what fits into memory]",
)
@click.option("--iterations", type=click.IntRange(2), default=300, show_default=True, help="Of each run.")
@click.option("--noise", type=float, default=0.03, show_default=True, help="Relative deviation of a time.")
@click.option(
    "--spikes",
    type=float,
    default=0.0,
    show_default=True,
    help="Share of times that are three times as long.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the noise; the first.")
@click.option("--seeds", type=click.IntRange(1), default=1, show_default=True, help="Runs of each policy.")
@click.option(
    "--change",
    "changes",
    multiple=True,
    metavar="ITERATION:WORKER:FACTOR",
    help="From then on it takes FACTOR times as long as measured; may be repeated, `none` for no change.  "
    "[default: the worker with most samples takes twice as long from the middle on]",
)
@option(PolicyOptions, "tolerance", TOLERANCE)
@click.option(
    "--plot", "plot_path", type=click.Path(path_type=Path), default=None, help="Draw a picture, a PNG file."
)
def bench_balance(
    curves: Path | None,
    json_path: Path | None,
    policies: tuple[str, ...],
    models: tuple[str, ...],
    gpus: str,
    totals: tuple[int, ...],
    iterations: int,
    noise: float,
    spikes: float,
    seed: int,
    seeds: int,
    changes: tuple[str, ...],
    tolerance: float,
    plot_path: Path | None,
) -> None:
    """Play balancing policies against measured step times, with noise and changes of speed.

    The workers of a GPU that comes twice are called GPU and GPU-2. All figures are relative to the best
    split, which is found from the measurements.
    """
    with user_mistakes():
        from evenpace.lab.bench.balance import Options, run
        from evenpace.lab.bench.balance_play import Noise

        run(
            Options(
                curves,
                policies,
                models,
                tuple(gpu for gpu in gpus.split(",") if gpu),
                totals,
                iterations,
                Noise(noise, spikes, seed),
                seeds,
                _schedule(changes) if changes else None,
                tolerance,
            ),
            json_path,
            plot_path,
        )


def _schedule(texts: tuple[str, ...]) -> "tuple[Change, ...]":
    """Read the values of `--change`.

    Raises:
        ValueError: One is not of that form.
    """
    from evenpace.lab.bench.balance_play import Change

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
