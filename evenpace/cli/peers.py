"""Options that commands share which serve or call others: addresses, TLS, tokens, the parent process."""

import functools
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from evenpace.cli.options import F, user_mistakes
from evenpace.cli.settings import configured
from idl.errors import InvalidRequestError
from rpc.credentials import CA_FILE, CERTIFICATE_FILE, KEY_FILE, Credentials, read_token
from rpc.limits import ServerLimits
from rpc.server import Security
from rpc.tokens import Purpose

MANAGER = "127.0.0.1:4300"
"""Default address of a manager, to listen on and to connect to."""

RAY_ADDRESS = click.option(
    "--address",
    envvar="RAY_ADDRESS",
    default=None,
    show_envvar=True,
    metavar="HOST:PORT",
    help='The Ray cluster; "auto" finds the one on this machine.',
)
"""Option of commands about jobs on Ray, which take it as `address`."""

_FILES = {"ca": CA_FILE, "certificate": CERTIFICATE_FILE, "key": KEY_FILE}


def as_server(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of every service, which the command takes as `security` and `limits`."""

    @with_credentials("token")
    @configured(Security, "security")
    @configured(ServerLimits, "limits")
    @functools.wraps(function)
    def command(security: Security, credentials: Credentials | None, **others: Any) -> Any:
        return function(security=replace(security, credentials=credentials), **others)

    return command


def as_client(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of every caller of services, which the command takes as `credentials`."""
    return with_credentials()(function)


def with_cluster_token(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option of commands that call a shared cluster's scheduler, whose file's content is `token`."""

    @click.option(
        "--token-file",
        type=click.Path(path_type=Path, dir_okay=False),
        default=None,
        help="A file with your token, if the shared cluster asks for one; see `evenpace token`.",
    )
    @functools.wraps(function)
    def command(token_file: Path | None, **others: Any) -> Any:
        return function(token=cluster_token(token_file), **others)

    return command


def cluster_token(file: Path | None) -> str:
    """Return the token of a shared cluster's user or operator in a file; the empty string without a file."""
    with user_mistakes():
        return "" if file is None else read_token(file, Purpose.CLUSTER)


def with_credentials(*without: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the options of credentials, which the command takes as `credentials`: None if none is given."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        @configured(Credentials, "credentials", without=without)
        @functools.wraps(function)
        def given(credentials: Credentials, **others: Any) -> Any:
            return function(credentials=None if credentials == Credentials() else credentials, **others)

        @click.option(
            "--tls",
            "folder",
            type=click.Path(path_type=Path, file_okay=False),
            default=None,
            metavar="DIR",
            help="Speak TLS with the files of this folder, from `evenpace certs issue`.",
        )
        @functools.wraps(given)
        def command(folder: Path | None, **values: Any) -> Any:
            if folder is not None:
                if any(values[name] is not None for name in _FILES):
                    raise InvalidRequestError("give --tls, or --ca, --certificate and --key, not both")
                values |= {name: folder / file for name, file in _FILES.items()}
            return given(**values)

        return command

    return add


def with_parent(function: F) -> F:
    """Add the options that end a process with the one that started it, by SIGTERM or by SIGKILL."""
    for name, by in (("--parent", signal.SIGTERM), ("--parent-kill", signal.SIGKILL)):
        function = click.option(
            name,
            type=int,
            hidden=True,
            is_eager=True,
            expose_value=False,
            callback=functools.partial(_end_with_parent, by),
            help="End when this process ends.",
        )(function)
    return function


def _end_with_parent(
    by: signal.Signals, context: click.Context, option: click.Parameter, parent: int | None
) -> None:
    if parent is not None:
        from worker.parent import end_with_parent

        end_with_parent(parent, by)


def announce(address: Any) -> None:
    """Print the address on which a service listens, for the process that started it."""
    from rpc.processes import LISTENING

    click.echo(f"{LISTENING}{address}")
