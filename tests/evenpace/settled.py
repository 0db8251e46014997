"""What commands' options have of their configurations' fields: names, defaults and help."""

from dataclasses import MISSING, fields, is_dataclass

import click
import pytest

from evenpace.cli import cli
from idl.settings import settings_of


def as_parameters(commands, without=()):
    """Return parameters of a test: a command, a configuration, a field of it that is an option, its setting.

    Args:
        commands: By commands' words, their configurations.
        without: Words of a command and names of fields that are no options of it.
    """
    return [
        pytest.param(command, config, one, setting, id=f"{command}-{one.name}")
        for command, configs in commands.items()
        for whole in configs
        for config, one, setting in _settled(whole)
        if (command, one.name) not in without
    ]


def check_option(words, config, one, setting, own_default=True):
    """Check that a command's option has the default and the help of a field.

    Args:
        words: The command's.
        config: The configuration.
        one: The field.
        own_default: Whether the option's default is the field's; else it has none.
    """
    made = cli
    for word in words.split():
        made = made.get_command(click.Context(made), word)
    flag = "--" + (setting.name or one.name).replace("_", "-")
    (found,) = (param for param in made.params if flag in param.opts)
    context = click.Context(made)
    if found.required:
        assert one.default is MISSING
        assert one.default_factory is MISSING
    elif one.default_factory is not MISSING or not own_default:
        assert found.get_default(context) is None
    else:
        value = found.type_cast_value(context, found.get_default(context))
        assert (value if setting.unit == 1 else value * setting.unit) == getattr(config, one.name)
    assert found.help == (setting.help or None)


def _settled(config):
    """Each field with an option: its configuration, its field and its setting; also of fields' fields."""
    settings = settings_of(type(config))
    for one in fields(config):
        if one.name in settings:
            if settings[one.name].help is not None and not settings[one.name].positional:
                yield config, one, settings[one.name]
        elif one.default_factory is not MISSING and is_dataclass(value := getattr(config, one.name)):
            yield from _settled(value)
