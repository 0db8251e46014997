"""What several commands share: options, help, and how mistakes are told."""

import contextlib
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import click

from predictors import PredictorOptions
from rpc.errors import EvenpaceError

F = TypeVar("F", bound=Callable[..., Any])


@contextlib.contextmanager
def user_mistakes() -> Iterator[None]:
    """Report what the user got wrong in one line, too; not for where a user's own code runs."""
    try:
        yield
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
