"""`evenpace health`: a call of services, for health checks of containers and supervisors."""

import contextlib
from typing import Any

import click

from evenpace.cli.options import example
from evenpace.cli.peers import as_client
from evenpace.cli.settings import PLACES
from rpc.credentials import Credentials
from rpc.places import Where

_NOBODY = "evenpace-health"  # neither a job nor a worker has this name


@click.command()
@example("evenpace health --manager 127.0.0.1:4300 --ps 127.0.0.1:4400")
@click.option("--manager", type=PLACES, default=None, help="A BatchSizeManager.")
@click.option("--ps", "shards", type=PLACES, multiple=True, help="A shard; may be repeated.")
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=2.0,
    show_default=True,
    help="Seconds for each service to answer in.",
)
@as_client
def health(
    manager: Where | None, shards: tuple[Where, ...], timeout: float, credentials: Credentials | None
) -> None:
    """Call services; status 0 if each answers, else 1 and a line that says which does not.

    A manager that does not write its state any more answers with an error.
    Where they speak TLS, a certificate is needed; a token is not.
    """
    if manager is None and not shards:
        raise click.UsageError("nothing to check: give --manager or --ps")
    import idl
    from rpc.client import Client

    checks: list[tuple[type, str, Where, str, Any]] = []
    wire: Any = idl.batchsize_manager
    if manager is not None:
        history = wire.HistoryRequest(job=_NOBODY, first_iteration=0, limit=1)
        checks.append((wire.BatchSizeManager, "BatchSizeManager", manager, "history", history))
    wire = idl.parameter_server
    pull = wire.PullRequest(identity=idl.common.Identity(_NOBODY, _NOBODY, _NOBODY), version=-1)
    checks += [(wire.ParameterServer, "parameter server", shard, "pull", pull) for shard in shards]
    for definition, name, where, method, request in checks:
        client = Client(
            definition, where, name, connect_timeout=timeout, call_timeout=timeout, credentials=credentials
        )
        with contextlib.closing(client):
            # That it is unavailable is an answer.
            client.call_as_nobody(method, request, unavailable_timeout=0)
