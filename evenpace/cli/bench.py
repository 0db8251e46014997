"""`evenpace bench`: measurements of evenpace itself."""

from pathlib import Path

import click

from evenpace.cli.options import example, json_path, learning, user_mistakes
from predictors import PREDICTORS, PredictorOptions


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
    from evenpace.bench.rpc import run

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
@json_path
def bench_ps(mib: int, repeats: int, tls: bool, json_path: Path | None) -> None:
    """Time push and pull of the parameter server, of bare sockets, and of thriftpy2's binary argument."""
    from evenpace.bench.ps import run

    run(mib, repeats, json_path, tls=tls)


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
@learning()
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
        from evenpace.bench.predictors import run

        options = PredictorOptions(first_fit=first_fit, refit_every=refit_every)
        counts = _whole_numbers("timing-workers", timing_workers) if timing else ()
        run(trace_path, names, options, warm_up, counts, json_path, plot_path)


def _whole_numbers(name: str, text: str) -> tuple[int, ...]:
    """Read an option's value such as `1,96,1000`.

    Raises:
        ValueError: It is not made of numbers from 1.
    """
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) < 1:
        raise ValueError(f"{name} {text!r}: give whole numbers from 1, as in 1,96,1000")
    return numbers
