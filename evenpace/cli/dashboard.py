"""`evenpace dashboard`: the live page about a manager's jobs."""

from dataclasses import replace
from pathlib import Path

import click

from evenpace.cli.options import example, user_mistakes
from evenpace.cli.peers import as_client, with_parent
from evenpace.cli.settings import configured, option
from evenpace.dashboard.config import ManagerPageConfig
from rpc.credentials import Credentials
from rpc.server import Security


@click.command()
@example("evenpace dashboard --manager 127.0.0.1:4300 --http 127.0.0.1:4380")
@configured(ManagerPageConfig, "config", without=("credentials",))
@option(
    Security,
    "token_keys",
    text="The manager's file of keys: sign tokens of all jobs with it, instead of a --token-file.",
)
@click.option("--http-socket", type=int, hidden=True, help="Listens already.")
@as_client
@with_parent
def dashboard(
    config: ManagerPageConfig,
    token_key: Path | None,
    http_socket: int | None,
    credentials: Credentials | None,
) -> None:
    """Serve a live page about a manager's jobs: who slows whom, and what is done about it.

    Where the manager asks for tokens, the page shows the jobs that its own token is for, and viewers need one
    of theirs to change them.
    """
    import socket

    from evenpace.dashboard.api import manager_page
    from evenpace.dashboard.identity import MintedCredentials, job_of
    from evenpace.dashboard.listening import listen
    from evenpace.dashboard.page_server import serve

    with user_mistakes():
        own = credentials or Credentials()
        if token_key is not None:
            if own.token is not None:
                raise ValueError("give --token-key or --token-file, not both")
            own = MintedCredentials.of(credentials, token_key)
        job_of(own)  # a token that cannot be read is an error now, not at the first look
        own.check_target(config.manager)
        config = replace(config, credentials=own)
        config.check()
        listener = listen(config.http) if http_socket is None else socket.socket(fileno=http_socket)
        serve(config, manager_page(config), listener, lambda url: click.echo(f"page on {url}"))
