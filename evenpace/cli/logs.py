"""Options of all commands for the log: its form, level and file."""

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evenpace.cli.options import F, user_mistakes

if TYPE_CHECKING:
    from rpc.logs import Form, LogSetup


def log_options(function: F) -> Callable[..., Any]:
    """Give the command group the options of the log, which is set up before `function` is called."""

    @click.option(
        "--log-format",
        type=click.Choice(("console", "json")),
        default="console",
        show_default=True,
        help="Lines to read, or an object of JSON in each line; both with job, worker and iteration.",
    )
    @click.option(
        "--log-level",
        type=click.Choice(("debug", "info", "warning", "error")),
        default="info",
        show_default=True,
        help="Log this and what is worse.",
    )
    @click.option(
        "--log-file",
        type=click.Path(path_type=Path, dir_okay=False),
        default=None,
        help="Append to this file, and begin another where it was moved away.  [default: stderr]",
    )
    @functools.wraps(function)
    def command(log_format: "Form", log_level: str, log_file: Path | None, **others: Any) -> Any:
        from rpc.logs import LogSetup

        with user_mistakes():
            click.get_current_context().obj = LogSetup(
                log_format, "debug" if others["debug"] else log_level, log_file
            )
        return function(**others)

    return command


def always_log(fields: Callable[[], Mapping[str, object]]) -> None:
    """Add fields to every line of this process's log, by `LogSetup.set_common_fields`."""
    setup: LogSetup = click.get_current_context().obj
    setup.set_common_fields(fields)
