"""Fields that several configurations of the lab have, with their settings."""

from functools import partial
from pathlib import Path
from typing import Annotated

from evenpace.local.fields import parse_shares
from idl.settings import Setting


def whole_numbers(option: str, text: str, least: int) -> tuple[int, ...]:
    """Read an option's value such as `1,96,1000`.

    Raises:
        ValueError: It is not made of whole numbers from `least` on.
    """
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) < least:
        raise ValueError(f"{option} {text!r}: give whole numbers from {least}, as in 1,2,3")
    return numbers


def numbers(option: str, what: str, metavar: str, least: int) -> Setting:
    """Return the setting of an option with whole numbers from `least` on."""
    return Setting(what, metavar=metavar, read=partial(whole_numbers, option, least=least))


def parse_names(text: str) -> tuple[str, ...]:
    """Read names with commas between them; empty ones are left out."""
    return tuple(name for name in text.split(",") if name)


Shares = Annotated[
    tuple[float, ...],
    Setting("The CPU share of each worker.", metavar="CORES,...", read=parse_shares),
]
"""Cores that each worker may use."""

ImageData = Annotated[str, Setting("The images to train on.", metavar="digits|mnist:DIR|cifar10:DIR")]
"""A set of images, as `lab.data.load` takes it."""

Folder = Annotated[Path, Setting("Folder for figures, plots and logs.")]
"""Where an experiment's files go."""

Mib = Annotated[int, Setting("Size of the gradient.", least=1, most=1900)]
"""MiB of parameters that are sent at once."""

Repeats = Annotated[int, Setting("Medians are over these.", least=1)]
"""Repetitions of a measurement."""

Seed = Annotated[int, Setting("Seed of the first parameters and of the samples' order.", least=0)]
"""Seed of a model's first parameters and of the samples' order."""
