"""A logger that puts fields into each of its lines, such as the job and the worker that it is about."""

import logging
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any


class FieldLog(logging.LoggerAdapter[logging.Logger]):
    """A logger whose lines have fields, which are asked for as each line is logged.

    Args:
        name: The logger's name, which is that of the module that logs.
        fields: Returns the fields; may be called by any thread.
    """

    def __init__(self, name: str, fields: Callable[[], Mapping[str, object]] = dict) -> None:
        super().__init__(logging.getLogger(name))
        self._fields = fields

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Put the fields into a line; `logging` calls it."""
        return msg, {**kwargs, "extra": self._fields()}

    def of(self, name: str) -> "FieldLog":
        """Return a logger with the same fields for another module."""
        return FieldLog(name, self._fields)
