"""Options of commands, made of a configuration's fields, and configurations, made of the options' values.

A field's description stands in the field itself; see `idl.settings`.
"""

import functools
import operator
import types
from collections.abc import Callable, Collection, Iterator
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from math import isinf
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import click

from evenpace.cli.options import F, user_mistakes
from idl.settings import Setting, settings_of
from rpc.address import Address
from rpc.places import Places, Where, parse_where


class _AddressType(click.ParamType):  # type: ignore[type-arg]  # older versions have no such argument
    name = "host:port"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Address:
        """Read an address; the error is `Address.parse`'s."""
        return value if isinstance(value, Address) else Address.parse(value)


class _PlacesType(click.ParamType):  # type: ignore[type-arg]
    name = "places"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Where:
        """Read where a service is; the error is `Places.parse`'s."""
        return value if isinstance(value, Address | Places) else parse_where(value)


class _TextType(click.ParamType):  # type: ignore[type-arg]
    name = "text"

    def __init__(self, read: Callable[[str], Any]) -> None:
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read a value as its setting does, whose errors become `EvenpaceError`s."""
        with user_mistakes():
            return self._read(value) if isinstance(value, str) else value


_types = functools.cache(get_type_hints)
"""The types of a configuration's fields, by their names."""

ADDRESS = _AddressType()
"""The type of options for an address to listen on."""

PLACES = _PlacesType()
"""The type of options for a service to call: its address, several, or a file that has them."""


def configured(
    config: type, into: str, *, without: Collection[str] = (), **defaults: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the options of a configuration, and the configuration that they make.

    There is an option for each field whose setting has a help, also in configurations that are fields
    themselves. An option that is not given and that has no default leaves its field as it is by default.

    Args:
        config: A dataclass.
        into: Argument of the command that takes the value.
        without: Names of fields that get no option.
        **defaults: Defaults of options, by field, where they differ from the fields' own.
    """

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def command(**values: Any) -> Any:
            with user_mistakes():
                values[into] = _built(config, None, values, without)
            return function(**values)

        for one, name, default in reversed([*_options(config, None, without)]):
            command = option(one, name, defaults.get(name, default))(command)
        return command

    return add


def option(config: type, name: str, default: Any = MISSING, text: str | None = None) -> Callable[[F], F]:
    """Give a command the option of one field, for one that makes no such configuration itself.

    Args:
        config: A dataclass.
        default: Default instead of the field's own, in the field's unit; None for none.
        text: Help instead of the field's own.
    """
    setting = settings_of(config)[name]
    kind, several = _click_type(_types(config)[name], setting)
    if default is MISSING:
        default = _default(config.__dataclass_fields__[name])  # type: ignore[attr-defined]
    if isinstance(default, Address):
        default = str(default)  # click would show the tuple
    elif setting.unit != 1 and default is not None:
        default //= setting.unit
    elif setting.read is not None and default:
        default = ",".join(map(str, default)) if isinstance(default, tuple | list) else str(default)
    if setting.positional:
        count, required = (-1, False) if several else (1, default is MISSING)
        return click.argument(name, nargs=count, required=required, type=kind, metavar=setting.metavar)
    flag = _parameter(name, setting).replace("_", "-")
    return click.option(
        f"--{flag}/--no-{flag}" if default is True else f"--{flag}",
        type=kind,
        multiple=several,
        **{"required": True} if default is MISSING else {"default": default},
        is_flag=True if kind is bool else None,
        show_default=default is not False and default not in (MISSING, None, ()),
        metavar=setting.metavar,
        help=text or setting.help or None,
    )


def _options(config: type, example: Any, without: Collection[str]) -> Iterator[tuple[type, str, Any]]:
    """Yield the configuration, name and default of each field that gets an option."""
    for field, setting, default in _fields(config, example, without):
        if setting is not None:
            yield config, field, default
        else:
            yield from _options(type(default), default, without)


def _built(config: type, example: Any, values: dict[str, Any], without: Collection[str]) -> Any:
    """Take the options' values out of `values`, and make a configuration of them."""
    chosen = {}
    for field, setting, default in _fields(config, example, without):
        if setting is None:
            chosen[field] = _built(type(default), default, values, without)
        elif (value := values.pop(_parameter(field, setting))) is not None:
            chosen[field] = value if setting.unit == 1 else value * setting.unit
    return config(**chosen) if example is None else replace(example, **chosen)


def _fields(
    config: type, example: Any, without: Collection[str]
) -> Iterator[tuple[str, Setting | None, Any]]:
    """Yield the name, setting and default of fields that have an option or are configurations with options.

    A field that is a configuration comes with None as its setting.

    Args:
        config: A dataclass.
        example: Configuration of that class with the defaults; None for those of its fields.
        without: Names of fields that are left out.
    """
    settings = settings_of(config)
    for field in fields(config):
        default = _default(field) if example is None else getattr(example, field.name)
        if field.name in without:
            continue
        if field.name in settings:
            if settings[field.name].help is not None:
                yield field.name, settings[field.name], default
        elif is_dataclass(default) and any(_fields(type(default), default, without)):
            yield field.name, None, default


def _default(field: Field[Any]) -> Any:
    """Return a field's default; MISSING without one, None for a factory's that is no dataclass."""
    if field.default_factory is MISSING:
        return field.default
    made = field.default_factory()
    return made if is_dataclass(made) else None


def _parameter(name: str, setting: Setting) -> str:
    """Return the name of the command's argument for a field's option."""
    return (setting.name or name).replace("-", "_")


def _click_type(hint: Any, setting: Setting) -> tuple[Any, bool]:
    """Return the option's type for a field with this annotation, and whether it may be repeated."""
    if isinstance(hint, types.UnionType):
        hint = functools.reduce(operator.or_, (one for one in get_args(hint) if one is not types.NoneType))
    if setting.read is not None:
        return _TextType(setting.read), False
    several = get_origin(hint) is tuple
    if several:
        hint, *others = get_args(hint)
        if others != [Ellipsis]:
            return tuple(_click_type(one, setting)[0] for one in (hint, *others)), False
    if setting.choices or get_origin(hint) is Literal:
        return click.Choice(tuple(setting.choices) or get_args(hint)), several
    if hint is Path:
        folder, file = setting.folder is not False, setting.folder is not True
        path = click.Path(path_type=Path, dir_okay=folder, file_okay=file, exists=setting.exists)
        return path, several
    if hint is Address:
        return ADDRESS, several
    if hint == Where:
        return PLACES, several
    if hint in (int, float):
        return _range(hint, setting), several
    return hint, several


def _range(kind: type, setting: Setting) -> Any:
    """Return the option's type for a number, with its bounds."""
    low = setting.above if setting.least is None else setting.least
    high = setting.below if setting.most is None else setting.most
    if high is not None and isinf(high):
        high = None  # the configuration checks it
    if low is None and high is None:
        return kind
    if setting.unit != 1:
        low, high = (bound if bound is None else -(-bound // setting.unit) for bound in (low, high))
    ends: dict[str, Any] = {
        "min": low,
        "max": high,
        "min_open": low is not None and setting.least is None,
        "max_open": high is not None and setting.most is None,
    }
    return click.IntRange(**ends) if kind is int else click.FloatRange(**ends)
