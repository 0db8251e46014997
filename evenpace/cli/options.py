"""What several commands share: options, help, and how mistakes are told."""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import click

from idl.errors import EvenpaceError
from predictors import PredictorOptions
from rpc.credentials import Credentials
from rpc.limits import ServerLimits
from rpc.server import Security

F = TypeVar("F", bound=Callable[..., Any])


@contextlib.contextmanager
def user_mistakes() -> Iterator[None]:
    """Report what the user got wrong in one line, too; not for where a user's own code runs."""
    try:
        yield
    except ModuleNotFoundError:
        raise  # the command line says what to install
    except (ValueError, OSError, ImportError) as error:
        raise EvenpaceError(str(error)) from error


def example(text: str) -> Callable[[F], F]:
    """Put an example at the end of a command's help."""

    def add(function: F) -> F:
        function.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\n\b\nExample:\n  {text}\n"
        return function

    return add


def hidden_parent(function: F) -> F:
    """The option that ties a process to the one that started it."""
    return click.option("--parent", type=int, hidden=True, help="End when this process ends.")(function)


def start_part(parent: int | None) -> None:
    """Tie this process to the one that started it, if `hidden_parent` names one."""
    if parent is not None:
        from worker.parent import end_with_parent

        end_with_parent(parent)


def announce(address: Any) -> None:
    """Say where a service listens, to whoever started it."""
    from evenpace.processes import LISTENING

    click.echo(f"{LISTENING}{address}")


def tolerance(function: F) -> F:
    """The option for how closely batch sizes follow predictions."""
    return click.option(
        "--tolerance",
        type=click.FloatRange(0, 1, max_open=True),
        default=0.02,
        show_default=True,
        help="Keep batch sizes while they are predicted to be this close to the best.",
    )(function)


def learning(first_fit: int = PredictorOptions.first_fit) -> Callable[[F], F]:
    """The options for when predictors learn; `PredictorOptions` says what is allowed."""

    def add(function: F) -> F:
        for name, default, text in (
            ("--refit-every", PredictorOptions.refit_every, "Iterations between fits."),
            ("--first-fit", first_fit, "Iterations before a predictor that learns is fitted first."),
        ):
            function = click.option(name, type=int, default=default, show_default=True, help=text)(function)
        return function

    return add


def json_path(function: F) -> F:
    """The option for where a benchmark's figures go."""
    return click.option(
        "--json",
        "json_path",
        type=click.Path(path_type=Path),
        default=None,
        help="Write the figures here.",
    )(function)


def limit_kind(function: F) -> F:
    """The option for how CPU shares are kept to; see `evenpace.cpu_limits.limit_cpu`."""
    return click.option(
        "--limit-kind", type=click.Choice(("auto", "cgroup", "duty-cycle")), default="auto", show_default=True
    )(function)


def ps_shards(function: F) -> F:
    """The option for how many processes the parameter server has."""
    return click.option(
        "--ps-shards",
        type=click.IntRange(1),
        default=1,
        show_default=True,
        help="Parameter-server processes.",
    )(function)


def out_folder(name: str) -> Callable[[F], F]:
    """The option for the folder of an experiment's files."""
    return click.option(
        "--out",
        type=click.Path(path_type=Path),
        default=Path("runs") / name,
        show_default=True,
        help="Folder for figures, plots and logs.",
    )


_LIMITS = {  # of `ServerLimits`, those that depend on the size of a cluster
    "connections": "Peers at once.",
    "address_connections": "Of them, from one address.",
    "strangers": "Of them, that have not authenticated themselves yet.",
    "calls_per_second": "Of one connection, in the long run.",
    "unfinished_bytes": "Of messages that have not arrived as a whole, over all connections.",
    "unsent_bytes": "Of answers that one peer has not taken, before no more of its calls are.",
}


def as_server(function: F) -> F:
    """The options of every service, which get to the command as `security` and `limits`."""

    @_tls_options
    @click.option(
        "--token-key",
        type=_FILE,
        default=None,
        help="Ask for tokens that are signed with a key of this file; see `evenpace token`.",
    )
    @click.option(
        "--insecure",
        is_flag=True,
        help="Listen to other machines without TLS or without tokens: for networks that are trusted.",
    )
    @_limit_options
    @functools.wraps(function)
    def command(token_key: Path | None, insecure: bool, **others: Any) -> Any:
        with user_mistakes():
            limits = ServerLimits(**{name: others.pop(f"max_{name}") for name in _LIMITS})
            security = Security(_take_credentials(others), token_key, insecure)
        return function(security=security, limits=limits, **others)

    return command  # type: ignore[return-value]


def as_client(function: F) -> F:
    """The options of everything that calls services, which get to the command as `credentials`."""

    @_tls_options
    @click.option(
        "--token-file",
        type=_FILE,
        default=None,
        help="With the job's token, where the services ask for one; see `evenpace token`.",
    )
    @functools.wraps(function)
    def command(token_file: Path | None, **others: Any) -> Any:
        with user_mistakes():
            credentials = _take_credentials(others, token_file)
        return function(credentials=credentials, **others)

    return command  # type: ignore[return-value]


_FILE = click.Path(path_type=Path, dir_okay=False)


def _tls_options(function: F) -> F:
    for option in (
        click.option("--key", type=_FILE, default=None, help="The certificate's key, a PEM file."),
        click.option("--certificate", type=_FILE, default=None, help="This side's, a PEM file."),
        click.option("--ca", type=_FILE, default=None, help="The authorities that are trusted, a PEM file."),
        click.option(
            "--tls",
            "tls_folder",
            type=click.Path(path_type=Path, file_okay=False),
            default=None,
            metavar="DIR",
            help="Speak TLS with the files of this folder, from `evenpace certs issue`.",
        ),
    ):
        function = option(function)
    return function


def _limit_options(function: F) -> F:
    for name, text in reversed(_LIMITS.items()):
        default = getattr(ServerLimits, name)
        kind = click.IntRange(1) if type(default) is int else click.FloatRange(0, min_open=True)
        option = f"--max-{name.replace('_', '-')}"
        function = click.option(option, type=kind, default=default, show_default=True, help=text)(function)
    return function


def _take_credentials(options: dict[str, Any], token: Path | None = None) -> Credentials | None:
    """The credentials that the options of a command name, which are taken out of them."""
    folder = options.pop("tls_folder")
    files = options.pop("ca"), options.pop("certificate"), options.pop("key")
    if folder is not None and any(files):
        raise ValueError("give --tls, or --ca, --certificate and --key, not both")
    if folder is not None:
        return Credentials.of_folder(folder, token)
    return Credentials(*files, token) if any(files) or token is not None else None
