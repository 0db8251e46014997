"""Fields that several configurations of the lab have, with their settings."""

import os
from pathlib import Path
from typing import Annotated

from idl.errors import InvalidRequestError
from idl.settings import Setting
from worker.resources.cpu_limits import LimitKind


def parse_shares(text: str) -> tuple[float, ...]:
    """Read the CPU shares of workers, as in "0.8,0.4,0.2,0.1".

    Raises:
        InvalidRequestError: A share is no number, or more than the cores here.
    """
    try:
        shares = tuple(float(share) for share in text.split(","))
    except ValueError:
        shares = ()
    cpus = os.cpu_count() or 1
    if not shares or not all(0.01 <= share <= cpus for share in shares):
        raise InvalidRequestError(
            f"shares {text!r}: give numbers from 0.01 to {cpus}, the cores here, as in 0.8,0.4,0.2,0.1"
        )
    return shares


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


def parse_names(text: str) -> tuple[str, ...]:
    """Read names with commas between them; empty ones are left out."""
    return tuple(name for name in text.split(",") if name)


Shares = Annotated[
    tuple[float, ...],
    Setting("The CPU share of each worker.", metavar="CORES,...", read=parse_shares),
]
"""Cores that each worker may use."""

ImageData = Annotated[str, Setting("The images to train on.", metavar="digits|mnist:DIR|cifar10:DIR")]
"""A set of images, as `evenpace.lab.data.load` takes it."""

Limit = Annotated[LimitKind, Setting("How CPU shares are kept to; see `evenpace worker`.")]
"""How CPU shares are kept to; see `worker.resources.cpu_limits.limit_cpu`."""

Folder = Annotated[Path, Setting("Folder for figures, plots and logs.")]
"""Where an experiment's files go."""

Shards = Annotated[int, Setting("Parameter-server processes.", name="ps-shards", least=1)]
"""Processes of the parameter server."""

Repeats = Annotated[int, Setting("Medians are over these.", least=1)]
"""Repetitions of a measurement."""

Seed = Annotated[int, Setting("Seed of the first parameters and of the samples' order.", least=0)]
"""Seed of a model's first parameters and of the samples' order."""
