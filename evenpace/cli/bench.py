"""`evenpace bench`: measurements of evenpace itself."""

from pathlib import Path

import click

from evenpace.cli.options import example, json_path


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
@json_path
def bench_rpc(workers: int, rounds: int, json_path: Path | None) -> None:
    """Time barrier rounds of the manager, and of thriftpy2's threaded server doing the same."""
    from evenpace.bench.rpc import run

    run(workers, rounds, json_path)


@bench.command("ps")
@example("evenpace bench ps --mib 100 --json ps.json")
@click.option(
    "--mib", type=click.IntRange(1, 1900), default=100, show_default=True, help="Size of the gradient."
)
@click.option(
    "--repeats", type=click.IntRange(1), default=9, show_default=True, help="Medians are over these."
)
@json_path
def bench_ps(mib: int, repeats: int, json_path: Path | None) -> None:
    """Time push and pull of the parameter server, of bare sockets, and of thriftpy2's binary argument."""
    from evenpace.bench.ps import run

    run(mib, repeats, json_path)
