"""Options that have no meaning with others."""

from collections.abc import Iterable

import click
from click.core import ParameterSource


def refuse_given(context: click.Context, names: Iterable[str], otherwise: str) -> None:
    """Refuse options that were given, though they have no meaning with `otherwise`.

    Raises:
        click.UsageError: One of them was given.
    """
    for name in names:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{name.replace('_', '-')}: has no meaning with {otherwise}")
