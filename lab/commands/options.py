"""Options that several commands of the lab share, and readers of their values."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import click
from click.core import ParameterSource

from evenpace.cli.options import F

T = TypeVar("T")


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


def by_workload(
    option: str, values: Sequence[str], workloads: Sequence[str], read: Callable[[str], T]
) -> dict[str, T]:
    """Read an option's values: VALUE is for all workloads, NAME=VALUE for one of them, and prevails.

    Raises:
        ValueError: There is no such workload, or a value is not allowed.
    """
    chosen: dict[str, T] = {}
    own: dict[str, T] = {}
    for value in values:
        name, equals, rest = value.partition("=")
        try:
            if not equals:
                chosen = dict.fromkeys(workloads, read(value))
            elif name in workloads:
                own[name] = read(rest)
            else:
                raise ValueError(f"no workload {name!r} here; there are {', '.join(workloads)}")
        except ValueError as error:
            raise ValueError(f"--{option} {value!r}: {error}") from error
    return {**chosen, **own}


def share(text: str) -> float:
    """Read a number above 0 and up to 1 (ValueError: the text is no such number)."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 < number <= 1:
        raise ValueError(f"{text!r}: must be above 0 and at most 1")
    return number
