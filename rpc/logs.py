"""Logging of a command-line process: the only module that configures it, and that knows structlog.

All other modules log by `logging.getLogger(__name__)`, with fields in `extra`, or by a `FieldLog`, which puts
them there: job, worker, run, attempt, iteration. Here these become `key=value` on a console, or members of a
JSON object. A line stays one line, whatever peers put into names.
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

# The fields that come first in a line.
_FIRST = ("timestamp", "level", "logger", "event", "job", "worker", "run", "attempt", "iteration")
_LEVEL_STYLES = {
    "debug": "\x1b[32m",
    "info": "\x1b[32m",
    "warning": "\x1b[33m",
    "error": "\x1b[31m",
    "critical": "\x1b[31;1m",
}
_DIM, _BRIGHT, _RESET = "\x1b[2m", "\x1b[1m", "\x1b[0m"

# Libraries whose lines at "info" are about themselves.
_NOISY = ("matplotlib", "jax._src.xla_bridge")

# Characters that end a line, move a cursor, or change the direction of text, and lone surrogates.
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

_Event = MutableMapping[str, Any]


class LogSetup:
    """The set-up of this process's log; replaces any earlier one.

    Args:
        form: "console": lines for people; "json": a JSON object in each line.
        level: The least level that is written, as `logging` calls it, in lower case.
        file: The file that is appended to, and opened again after it was moved away; None: stderr.

    Raises:
        OSError: The file cannot be written.
    """

    def __init__(self, form: Form = "console", level: str = "info", file: Path | None = None) -> None:
        self._common_fields: Callable[[], Mapping[str, object]] = dict
        handler: logging.Handler
        if file is None:
            handler = logging.StreamHandler(sys.stderr)
            colours = sys.stderr.isatty()
        else:
            handler = _LogFile(file, encoding="utf-8")
            colours = False
        formatter = self._formatter(form, colours)
        formatter.form = form
        handler.setFormatter(formatter)
        logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
        for name in _NOISY:
            logging.getLogger(name).setLevel(logging.WARNING if level == "info" else logging.NOTSET)

    def set_common_fields(self, fields: Callable[[], Mapping[str, object]]) -> None:
        """Set fields that are added to every line that does not have them itself; from any thread."""
        self._common_fields = fields

    def _formatter(self, form: Form, colours: bool) -> "_Formatter":
        ending: list[Processor]
        if form == "json":
            ending = [_rfc3339, _in_order, structlog.processors.JSONRenderer(_one_line_of_json)]
        else:
            ending = [_local_time, _in_order, _printable, _console(colours)]
        return _Formatter(
            foreign_pre_chain=[
                structlog.stdlib.ExtraAdder(),
                _without_private,
                structlog.contextvars.merge_contextvars,
                self._add_common_fields,
                structlog.stdlib.add_log_level,
                structlog.stdlib.add_logger_name,
            ],
            processors=[
                structlog.processors.format_exc_info,
                structlog.processors.StackInfoRenderer(),
                *ending,
            ],
        )

    def _add_common_fields(self, logger: Any, method: str, event: _Event) -> _Event:
        for key, value in self._common_fields().items():
            event.setdefault(key, value)
        return event


class _LogFile(WatchedFileHandler):
    """A log's file. That it cannot be written, as on a full disk, is said in one line, until it can be."""

    _failure: OSError | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record."""
        before, self._failure = self._failure, None
        super().emit(record)
        if self._failure and not before:
            sys.stderr.write(f"the log {self.baseFilename} cannot be written at present: {self._failure}\n")

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - its name in logging
        """Note an error of the file's; any other is a mistake in a call."""
        error = sys.exception()
        if isinstance(error, OSError):
            self._failure = error
        else:
            super().handleError(record)


class _Formatter(structlog.stdlib.ProcessorFormatter):
    form: Form


def options_in_force() -> list[str]:
    """Return options of `evenpace` by which another process logs at this one's level and in its form.

    The list is empty without a `LogSetup`. The file is left out: each process has its own.
    """
    root = logging.getLogger()
    for handler in root.handlers:
        if isinstance(handler.formatter, _Formatter):
            level = logging.getLevelName(root.level).lower()
            return ["--log-format", handler.formatter.form, "--log-level", level]
    return []


# -- structlog processors: each takes the fields of a line and returns them changed


def _without_private(logger: Any, method: str, event: _Event) -> _Event:
    """Leave out what libraries put into each record for themselves, as Ray does once it is imported."""
    for key in [key for key in event if key.startswith("_") and key not in ("_record", "_from_structlog")]:
        del event[key]
    return event


def _rfc3339(logger: Any, method: str, event: _Event) -> _Event:
    at = datetime.fromtimestamp(event["_record"].created, UTC)
    event["timestamp"] = at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return event


def _local_time(logger: Any, method: str, event: _Event) -> _Event:
    at = datetime.fromtimestamp(event["_record"].created)
    event["timestamp"] = at.isoformat(" ", "milliseconds")
    return event


def _in_order(logger: Any, method: str, event: _Event) -> _Event:
    """Sort the fields, and leave out structlog's own and those that are None."""
    ordered = {key: event[key] for key in _FIRST if event.get(key) is not None}
    rest = {k: v for k, v in event.items() if k not in _FIRST and k not in ("_record", "_from_structlog")}
    return ordered | rest


def _printable(logger: Any, method: str, event: _Event) -> _Event:
    """Escape all characters that would end a line or move the cursor; a traceback keeps its lines."""
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
    """Return a field's value, in quotes if it has spaces, quotes or equals signs."""
    text = str(value)
    if text and not set(text) & set(' "='):
        return text
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{quoted}"'


def _one_line_of_json(event: Mapping[str, Any], **options: Any) -> str:
    """Return the fields as JSON in ASCII, in which nothing can be taken for the end of the line."""
    return json.dumps({key: _json_value(value) for key, value in event.items()})


def _json_value(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return value if value is None or isinstance(value, str | int) else repr(value)
