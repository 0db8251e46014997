"""How a process of the command line logs: the one place that sets logging up, and that knows structlog.

All other modules log by `logging.getLogger(__name__)`, and say what a line is about by `extra`: job, worker,
run, attempt, iteration. Here these become `key=value` on a console, or members of a JSON object. Whatever
strangers put into names, a line stays one line.
"""

import json
import logging
import math
import re
import sys
from collections.abc import Callable, Mapping, MutableMapping
from datetime import UTC, datetime
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Any, Literal

import structlog
from structlog.dev import Column, KeyValueColumnFormatter, plain_traceback
from structlog.types import Processor

Form = Literal["console", "json"]

# In a line, these come first.
_FIRST = ("timestamp", "level", "logger", "event", "job", "worker", "run", "attempt", "iteration")
_LEVEL_STYLES = {
    "debug": "\x1b[32m",
    "info": "\x1b[32m",
    "warning": "\x1b[33m",
    "error": "\x1b[31m",
    "critical": "\x1b[31;1m",
}
_DIM, _BRIGHT, _RESET = "\x1b[2m", "\x1b[1m", "\x1b[0m"

# Libraries whose remarks at "info" are about themselves.
_TALKATIVE = ("matplotlib",)

# What ends a line somewhere, moves a cursor, turns the direction of text, or is no character at all.
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

_Event = MutableMapping[str, Any]


class LogSetup:
    """Has this process's lines written; replaces what was set up before.

    Args:
        form: Lines to read, or an object of JSON in each line.
        level: As `logging` calls it, in lower case: that, and what is worse, is written.
        file: Where to, at its end; None for stderr. It is opened anew when it was moved away.

    Raises:
        OSError: The file cannot be written.
    """

    def __init__(self, form: Form = "console", level: str = "info", file: Path | None = None) -> None:
        self._always: Callable[[], Mapping[str, object]] = dict
        handler: logging.Handler
        if file is None:
            handler = logging.StreamHandler(sys.stderr)
            colours = sys.stderr.isatty()
        else:
            handler = WatchedFileHandler(file, encoding="utf-8")
            colours = False
        formatter = self._formatter(form, colours)
        formatter.form = form
        handler.setFormatter(formatter)
        logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
        for name in _TALKATIVE:
            logging.getLogger(name).setLevel(logging.WARNING if level == "info" else logging.NOTSET)

    def say_always(self, fields: Callable[[], Mapping[str, object]]) -> None:
        """Have every line say these fields, too, where it does not say them itself; from any thread."""
        self._always = fields

    def _formatter(self, form: Form, colours: bool) -> "_Formatter":
        ending: list[Processor]
        if form == "json":
            ending = [_rfc3339, _in_order, structlog.processors.JSONRenderer(_one_line_of_json)]
        else:
            ending = [_local_time, _in_order, _printable, _console(colours)]
        return _Formatter(
            foreign_pre_chain=[
                structlog.stdlib.ExtraAdder(),
                structlog.contextvars.merge_contextvars,
                self._add_always,
                structlog.stdlib.add_log_level,
                structlog.stdlib.add_logger_name,
            ],
            processors=[
                structlog.processors.format_exc_info,
                structlog.processors.StackInfoRenderer(),
                *ending,
            ],
        )

    def _add_always(self, logger: Any, method: str, event: _Event) -> _Event:
        for key, value in self._always().items():
            event.setdefault(key, value)
        return event


class _Formatter(structlog.stdlib.ProcessorFormatter):
    form: Form


def options_in_force() -> list[str]:
    """Options of `evenpace` that have another process log at this one's level and in its form.

    None where no `LogSetup` was made. The file is not among them: each process has its own.
    """
    root = logging.getLogger()
    for handler in root.handlers:
        if isinstance(handler.formatter, _Formatter):
            level = logging.getLevelName(root.level).lower()
            return ["--log-format", handler.formatter.form, "--log-level", level]
    return []


# -- processors of structlog's: each takes what is known of a line, and gives it changed


def _rfc3339(logger: Any, method: str, event: _Event) -> _Event:
    at = datetime.fromtimestamp(event["_record"].created, UTC)
    event["timestamp"] = at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return event


def _local_time(logger: Any, method: str, event: _Event) -> _Event:
    at = datetime.fromtimestamp(event["_record"].created)
    event["timestamp"] = at.isoformat(" ", "milliseconds")
    return event


def _in_order(logger: Any, method: str, event: _Event) -> _Event:
    """Leave out what is structlog's own, and what is not known."""
    ordered = {key: event[key] for key in _FIRST if event.get(key) is not None}
    rest = {k: v for k, v in event.items() if k not in _FIRST and k not in ("_record", "_from_structlog")}
    return ordered | rest


def _printable(logger: Any, method: str, event: _Event) -> _Event:
    """Have nothing in a line that ends it or moves the cursor; a traceback keeps its lines."""
    for key, value in event.items():
        if key in ("exception", "stack"):
            event[key] = "\n".join(_escape(line) for line in value.split("\n"))
        elif not isinstance(value, int | float):
            event[key] = _escape(value if isinstance(value, str) else repr(value))
    return event


def _escape(text: str) -> str:
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def _console(colours: bool) -> structlog.dev.ConsoleRenderer:
    dim, bright, reset = (_DIM, _BRIGHT, _RESET) if colours else ("", "", "")

    def plain(style: str, postfix: str = "") -> KeyValueColumnFormatter:
        return KeyValueColumnFormatter(None, style, reset, str, postfix=postfix)

    def level(key: str, value: object) -> str:
        style = _LEVEL_STYLES.get(str(value), "") if colours else ""
        return f"{style}{str(value).upper():7}{style and reset}"

    return structlog.dev.ConsoleRenderer(
        columns=[
            Column("timestamp", plain(dim)),
            Column("level", level),
            Column("logger", plain(dim, postfix=":")),
            Column("event", plain(bright)),
            Column("", KeyValueColumnFormatter(dim, "", reset, _value)),
        ],
        exception_formatter=plain_traceback,
        sort_keys=False,
    )


def _value(value: object) -> str:
    """A field's value, in quotes where it would not end at its end."""
    text = str(value)
    if text and not set(text) & set(' "='):
        return text
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{quoted}"'


def _one_line_of_json(event: Mapping[str, Any], **options: Any) -> str:
    """JSON in ASCII: nothing in it can be taken for the end of the line."""
    return json.dumps({key: _json_value(value) for key, value in event.items()})


def _json_value(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return value if value is None or isinstance(value, str | int) else repr(value)
