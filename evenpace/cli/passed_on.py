"""Options of commands that run a whole job: how its gradients meet, and what its processes are given."""

import functools
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from evenpace.cli.options import F
from evenpace.cli.services import manager, ps, worker

_COMMANDS = {"manager": manager, "ps": ps, "worker": worker}
_FIELDS = {"manager": "manager_options", "ps": "shard_options", "worker": "worker_options"}


def with_exchange(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --shards and --all-reduce, which the command takes as `shards`: 0 for all-reduce."""

    @click.option(
        "--shards", type=click.IntRange(1), default=None, help="Shards of the parameter server.  [default: 1]"
    )
    @click.option(
        "--all-reduce", is_flag=True, help="No parameter server: workers reduce gradients themselves."
    )
    @functools.wraps(function)
    def command(shards: int | None, all_reduce: bool, **others: Any) -> Any:
        if all_reduce and shards is not None:
            raise click.UsageError("give --shards or --all-reduce, not both")
        return function(shards=0 if all_reduce else shards or 1, **others)

    return command


def passed_on(function: F) -> F:
    """Add the options for more options of each process, which the command takes as the fields of a job."""
    for command, field in reversed(_FIELDS.items()):
        function = click.option(
            f"--{command}-options",
            field,
            default="",
            callback=_words,
            metavar="OPTIONS",
            help=f"More options of `evenpace {command}`, in quotes.",
        )(function)
    return function


def check_command(words: Sequence[str], arguments: Sequence[str] = ()) -> None:
    """Check the command line of a process before anything is started.

    Args:
        words: A command of `evenpace` and its arguments.
        arguments: Of a worker: its script's arguments, which end `words`.

    Raises:
        ClickException, EvenpaceError: An option is wrong.
    """
    name, *rest = words
    context = _COMMANDS[name].make_context(f"evenpace {name}", [*rest], help_option_names=[])
    if name == "worker" and context.params["script"] != Path(rest[-1 - len(arguments)]):
        raise click.UsageError(f"--worker-options: {str(context.params['script'])!r} is no option")


def _words(context: click.Context, parameter: click.Parameter, text: str) -> tuple[str, ...]:
    """Split options as a shell does."""
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise click.BadParameter(f"{text!r}: {error}") from error
