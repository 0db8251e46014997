"""`evenpace demo`."""

from pathlib import Path
from typing import Any

import click

from batchsize_manager.config import TOLERANCE, ManagerConfig
from batchsize_manager.policies import PolicyOptions
from evenpace.cli.options import example, limit_kind, ps_shards, user_mistakes
from evenpace.cli.settings import ADDRESS, option
from rpc.address import Address


@click.command()
@example("evenpace demo --shares 0.8,0.4,0.2,0.1 --json demo.json")
@click.option(
    "--shares",
    default="0.8,0.4,0.2,0.1",
    show_default=True,
    metavar="CORES,...",
    help="The CPU share of each worker.",
)
@click.option("--data", default="digits", show_default=True, metavar="digits|mnist:DIR|cifar10:DIR")
@click.option(
    "--epochs", type=click.IntRange(1), default=None, help="Passes over the data.  [default: by data set]"
)
@click.option(
    "--batch-size", type=click.IntRange(1), default=None, help="Over all workers.  [default: by data set]"
)
@option(ManagerConfig, "policy", text="Of the balanced run.")
@option(PolicyOptions, "predictor")
@option(PolicyOptions, "tolerance", TOLERANCE)
@ps_shards
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True)
@limit_kind
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("runs/demo"),
    show_default=True,
    help="Folder for report and logs.",
)
@click.option(
    "--http",
    type=ADDRESS,
    default="127.0.0.1:0",
    show_default=True,
    help="Where the live page is; port 0 takes a free one.",
)
@click.option("--no-http", is_flag=True, help="No live page.")
@click.option(
    "--json", "json_path", type=click.Path(path_type=Path), default=None, help="Write the summary here."
)
def demo(
    shares: str,
    data: str,
    epochs: int | None,
    batch_size: int | None,
    policy: str,
    predictor: str,
    tolerance: float,
    ps_shards: int,
    seed: int,
    limit_kind: Any,
    out: Path,
    http: Address,
    no_http: bool,
    json_path: Path | None,
) -> None:
    """Train on uneven workers, first with an even split, then balanced, and compare."""
    from evenpace.lab.demo import DemoConfig, run_demo

    with user_mistakes():
        config = DemoConfig.from_options(
            shares=shares,
            data=data,
            epochs=epochs,
            total_batch_size=batch_size,
            policy=policy,
            predictor=predictor,
            tolerance=tolerance,
            shards=ps_shards,
            seed=seed,
            limit_kind=limit_kind,
            out=out,
            http=None if no_http else http,
        )
        run_demo(config, json_path)
