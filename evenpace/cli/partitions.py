"""`evenpace partitions`: the DataPartitionManager, for jobs whose workers hold parts of the data."""

import click

from batchsize_manager.partitions.partitioned_job import PartitionsConfig
from evenpace.cli.options import example
from evenpace.cli.peers import announce, as_server, with_parent
from evenpace.cli.settings import ADDRESS, configured
from evenpace.observing import Observing
from rpc.address import Address
from rpc.limits import ServerLimits
from rpc.server import Security


@click.command()
@example(
    "evenpace partitions --listen 0.0.0.0:4500 --tls secrets/partitions --token-key tokens.key --workers 5"
)
@click.option(
    "--listen", type=ADDRESS, default="127.0.0.1:4500", show_default=True, help="Where workers find it."
)
@configured(PartitionsConfig, "config")
@configured(Observing, "observing", without=("traces", "trace_every", "metrics_workers"))
@as_server
@with_parent
def partitions(
    listen: Address, config: PartitionsConfig, observing: Observing, security: Security, limits: ServerLimits
) -> None:
    """Run the DataPartitionManager, for data of which each worker holds a part.

    It counts how often each worker has gone through its part, and has slower workers hand samples over to
    faster ones, so that all samples are used about equally often.
    """
    from batchsize_manager.partitions.service import DataPartitionService
    from evenpace.serve import serve

    security.check_address(listen)
    observing.check(security)
    service = DataPartitionService(config)
    serve(service, listen, limits, security, announce, observing.partitions(service))
