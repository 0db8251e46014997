"""The DataPartitionManager, for jobs whose workers each have a part of the data of their own."""

import click

from evenpace.cli.observing import observed_figures
from evenpace.cli.options import announce, as_server, example, hidden_parent, start_part, user_mistakes
from evenpace.observing import Observing
from rpc.limits import ServerLimits
from rpc.server import Security


@click.command()
@example(
    "evenpace partitions --listen 0.0.0.0:4500 --tls secrets/partitions --token-key tokens.key --workers 5"
)
@click.option("--listen", default="127.0.0.1:4500", show_default=True, metavar="HOST:PORT")
@click.option(
    "--workers", type=click.IntRange(1), default=1, show_default=True, help="A job starts with so many."
)
@click.option(
    "--max-gap",
    type=click.FloatRange(0, min_open=True),
    default=2.0,
    show_default=True,
    help="Traversals by which a part may be ahead of another before samples move.",
)
@click.option(
    "--silence",
    type=click.FloatRange(0, min_open=True),
    default=30.0,
    show_default=True,
    help="Seconds without a report after which a worker is taken out.",
)
@observed_figures
@as_server
@hidden_parent
def partitions(
    listen: str,
    workers: int,
    max_gap: float,
    silence: float,
    observing: Observing,
    security: Security,
    limits: ServerLimits,
    parent: int | None,
) -> None:
    """Run the DataPartitionManager, for data of which each worker holds a part.

    It counts how often each worker has gone through its part, and has slower workers hand samples over to
    faster ones, so that all samples are used about equally often.
    """
    start_part(parent)
    from batchsize_manager.partitions.partitioned_job import PartitionsConfig
    from batchsize_manager.partitions.service import DataPartitionService, PartitionServiceConfig
    from evenpace.serve import serve
    from rpc.address import Address

    with user_mistakes():
        config = PartitionServiceConfig(PartitionsConfig(workers, max_gap, silence))
        address = Address.parse(listen)
        security.check_address(address)
        observing.check(security)
        service = DataPartitionService(config)
    serve(service, address, limits, security, announce, observing.partitions(service))
