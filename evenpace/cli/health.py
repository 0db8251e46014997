"""`evenpace health`: a call of services, for health checks of containers and supervisors."""

from typing import Any

import click

from evenpace.cli.options import example
from evenpace.cli.peers import as_client
from evenpace.cli.settings import PLACES
from idl.errors import InvalidRequestError, NotMemberError, UnauthorisedError
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
    import idl

    if manager is None and not shards:
        raise click.UsageError("nothing to check: give --manager or --ps")
    if manager is not None:
        service = idl.batchsize_manager
        history = service.HistoryRequest(job=_NOBODY, first_iteration=0, limit=1)
        _call(service.BatchSizeManager, manager, "BatchSizeManager", "history", history, timeout, credentials)
    for shard in shards:
        service = idl.parameter_server
        pull = service.PullRequest(identity=idl.common.Identity(_NOBODY, _NOBODY, _NOBODY), version=-1)
        _call(service.ParameterServer, shard, "parameter server", "pull", pull, timeout, credentials)


def _call(
    definition: type,
    where: Where,
    name: str,
    method: str,
    request: Any,
    timeout: float,
    credentials: Credentials | None,
) -> None:
    """Call a service about a job that does not exist: its error shows that it runs, and costs it little."""
    from rpc.client import Client

    client = Client(
        definition,
        where,
        name,
        connect_timeout=timeout,
        call_timeout=timeout,
        credentials=credentials,
    )
    try:
        client.call(method, request, unavailable_timeout=0)  # that it is unavailable is an answer
    except (InvalidRequestError, NotMemberError):
        pass
    except UnauthorisedError:
        if not client.is_connected:  # the error is from TLS, not from the service
            raise
    finally:
        client.close()
