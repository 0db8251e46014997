"""Options that several commands share, examples in help texts, and messages about mistakes."""

import contextlib
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import click

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
