"""`evenpace dashboard`: the live page about a manager's jobs."""

from pathlib import Path
from typing import Any

import click

from evenpace.cli.options import as_client, example, hidden_parent, start_part, user_mistakes
from rpc.credentials import Credentials


def http_names(function: Any) -> Any:
    """The option for names of the page."""
    return click.option(
        "--http-name",
        "http_names",
        multiple=True,
        metavar="NAME|IP",
        help="Another name under which browsers may call the page; may be repeated.",
    )(function)


@click.command()
@example("evenpace dashboard --manager 127.0.0.1:4300 --http 127.0.0.1:4380")
@click.option("--manager", required=True, metavar="HOST:PORT", help="The BatchSizeManager.")
@click.option("--http", default="127.0.0.1:4380", show_default=True, metavar="HOST:PORT")
@http_names
@click.option(
    "--token-key",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    help="The manager's file of keys: sign tokens of all jobs with it, instead of a --token-file.",
)
@click.option(
    "--insecure", is_flag=True, help="Listen to other machines without TLS: for networks that are trusted."
)
@click.option(
    "--max-viewers", type=click.IntRange(1), default=100, show_default=True, help="Who may follow at once."
)
@click.option(
    "--request-timeout",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    help="Seconds for a connection to send a whole request; then it is closed.",
)
@click.option("--http-socket", type=int, hidden=True, help="Listens already.")
@as_client
@hidden_parent
def dashboard(
    manager: str,
    http: str,
    http_names: tuple[str, ...],
    token_key: Path | None,
    insecure: bool,
    max_viewers: int,
    request_timeout: int,
    http_socket: int | None,
    credentials: Credentials | None,
    parent: int | None,
) -> None:
    """Serve a live page about a manager's jobs: who slows whom, and what is done about it.

    Where the manager asks for tokens, the page shows the jobs that its own token is for, and viewers need one
    of theirs to change them.
    """
    start_part(parent)
    import socket

    from evenpace.dashboard.config import PageConfig
    from evenpace.dashboard.identity import MintedCredentials, job_of
    from evenpace.dashboard.listening import listen
    from evenpace.dashboard.page_server import serve
    from rpc.address import Address

    with user_mistakes():
        own = credentials or Credentials()
        if token_key is not None:
            if own.token is not None:
                raise ValueError("give --token-key or --token-file, not both")
            own = MintedCredentials.of(credentials, token_key)
        job_of(own)  # a token that cannot be read is told now
        own.check_target(Address.parse(manager))
        config = PageConfig(
            Address.parse(manager),
            Address.parse(http),
            own,
            http_names,
            insecure,
            max_viewers,
            request_timeout,
        )
        listener = listen(config.http) if http_socket is None else socket.socket(fileno=http_socket)
        serve(config, listener, lambda url: click.echo(f"page on {url}"))
