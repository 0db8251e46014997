"""Commands that are run as users run them, in this process or in one of their own."""

import subprocess
import sys

import click
from click.testing import CliRunner

from evenpace.cli import cli


def python(*arguments, **options):
    """Run Python to its end; return its result with output."""
    command = [sys.executable, *map(str, arguments)]
    options = {"timeout": 240} | options
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def evenpace(*arguments, **options):
    """Run `evenpace` to its end; return its result with output."""
    return python("-m", "evenpace", *arguments, **options)


def invoke(*words, columns=None, **options):
    """Run a command of `evenpace` in this process; return its result with output."""
    if columns is not None:
        options["env"] = {"COLUMNS": str(columns)}
    return CliRunner().invoke(cli, [*map(str, words)], **options)


def all_commands(command=cli, words=("evenpace",)):
    """Yield all commands, groups too, each with the words that run it."""
    yield words, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from all_commands(command.get_command(context, name), (*words, name))


# All are imported now, not while a test has changed what options are made of.
for _ in all_commands():
    pass
