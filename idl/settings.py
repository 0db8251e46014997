"""Descriptions of a configuration's fields: help, option, and allowed values.

A field has its description where it stands, once:

    workers: Annotated[int, Setting("Number of workers with which a job starts.", least=1)] = 1

The configuration checks itself by it, and the command line (`evenpace.cli.settings`) makes an option of it.
This module must know nothing of options but their names.
"""

import functools
import operator
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, get_type_hints

from idl.errors import InvalidRequestError


@dataclass(frozen=True)
class Setting:
    """A description of a configuration's field, in the field's `Annotated`.

    Attributes:
        read: Function from the option's text to the field's value; None: by the field's type. With it, a
            field of several values is read from one text, such as `1,2,4`; without, the option is repeated.
    """

    help: str | None = None  # the help text of its option; None where there is no option
    name: str | None = None  # the option's name, if it is not the field's
    metavar: str | None = None  # the placeholder for a value in the option's help; None: that of its type
    least: float | None = None  # the smallest number that is allowed
    above: float | None = None  # numbers must be above it
    most: float | None = None  # the largest number that is allowed
    below: float | None = None  # numbers must be below it; `math.inf` refuses infinity
    choices: Collection[str] = ()  # the texts that are allowed; all, if there are none
    unit: int = 1  # the option's unit, as a multiple of the field's: 2**20 for MiB where the field has bytes
    # Whether a path that exists must be a folder's, or must not; None: either is allowed.
    folder: bool | None = None
    exists: bool = False  # whether a path must exist
    read: Callable[[str], Any] | None = None
    positional: bool = False  # whether it is no option, but an argument of the command

    def check(self, name: str, value: Any) -> None:
        """Check a field's value, or each value of a tuple; None is allowed.

        Raises:
            InvalidRequestError: The value is not allowed; the message says what is.
        """
        if value is None:
            return
        if type(value) is tuple:
            for one in value:
                self.check(name, one)
            return
        if self.choices and value not in self.choices:
            raise InvalidRequestError(f"{name} {value!r}: there are {', '.join(self.choices)}")
        bounds = [
            (words, bound, holds)
            for attribute, (words, holds) in _BOUNDS.items()
            if (bound := getattr(self, attribute)) is not None
        ]
        if not all(holds(value, bound) for _, bound, holds in bounds):  # no bound holds for NaN
            allowed = " and ".join(f"{words} {bound}" for words, bound, _ in bounds)
            raise InvalidRequestError(f"{name} {value}: must be {allowed}")


_BOUNDS: dict[str, tuple[str, Callable[[float, float], bool]]] = {
    "least": ("at least", operator.ge),
    "above": ("above", operator.gt),
    "most": ("at most", operator.le),
    "below": ("below", operator.lt),
}


@functools.cache
def settings_of(config: type) -> dict[str, Setting]:
    """Return the settings of a configuration's class by field; fields without one are left out."""
    hints = get_type_hints(config, include_extras=True)
    return {
        name: extra
        for name, hint in hints.items()
        for extra in getattr(hint, "__metadata__", ())
        if isinstance(extra, Setting)
    }


def check_settings(config: Any) -> None:
    """Check the fields of a configuration that have a setting.

    Raises:
        InvalidRequestError: A value is not allowed; the message names the field, the value and what is.
    """
    for name, setting in settings_of(config.__class__).items():
        setting.check(name, getattr(config, name))


class Checked:
    """A configuration, a dataclass, whose fields are checked when it is made, as by `check_settings`."""

    __slots__ = ()

    def __post_init__(self) -> None:
        check_settings(self)
