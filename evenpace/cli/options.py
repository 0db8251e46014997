"""Options that several commands share, examples in help texts, and messages about mistakes."""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from idl.errors import EvenpaceError

F = TypeVar("F", bound=Callable[..., Any])


@contextlib.contextmanager
def user_mistakes() -> Iterator[None]:
    """Turn errors by a user's mistake into `EvenpaceError`, of which one line is printed.

    Not to be used around a user's own code, whose errors need their traceback.
    """
    try:
        yield
    except ModuleNotFoundError:
        raise  # the command group names the extra to install
    except (ValueError, OSError, ImportError) as error:
        raise EvenpaceError(str(error)) from error


def example(text: str) -> Callable[[F], F]:
    """Put an example at the end of a command's help."""

    def add(function: F) -> F:
        function.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\n\b\nExample:\n  {text}\n"
        return function

    return add


def json_path(function: F) -> F:
    """Add the option for the file of a benchmark's figures."""
    return click.option(
        "--json",
        "json_path",
        type=click.Path(path_type=Path),
        default=None,
        help="Write the figures here.",
    )(function)


def refuse_given(context: click.Context, names: Iterable[str], otherwise: str) -> None:
    """Refuse options that were given, though they have no meaning with `otherwise`.

    Raises:
        click.UsageError: One of them was given.
    """
    for name in names:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{name.replace('_', '-')}: has no meaning with {otherwise}")


def plot_path(text: str) -> Callable[[F], F]:
    """Add the option for the file of a plot.

    Args:
        text: The help.
    """
    return click.option("--plot", "plot_path", type=click.Path(path_type=Path), default=None, help=text)


def in_minutes(text: str | None = None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command with --seconds the option --minutes, for where the seconds are not given.

    Args:
        text: The help.
    """

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        @click.option(
            "--minutes",
            type=click.FloatRange(0, min_open=True),
            default=1.0,
            show_default=True,
            help=text,
        )
        @functools.wraps(function)
        def command(minutes: float, **values: Any) -> Any:
            if values["seconds"] is None:
                values["seconds"] = 60 * minutes
            return function(**values)

        return command

    return add
