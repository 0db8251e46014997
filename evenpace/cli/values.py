"""Readers of options' values that are text: numbers, and one value for each workload."""

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def by_workload(
    option: str, values: Sequence[str], workloads: Sequence[str], read: Callable[[str], T]
) -> dict[str, T]:
    """Read an option's values: VALUE is for all workloads, NAME=VALUE for one of them, and prevails.

    Raises:
        ValueError: There is no such workload, or a value is not allowed.
    """
    chosen: dict[str, T] = {}
    own: dict[str, T] = {}
    for value in values:
        name, equals, rest = value.partition("=")
        try:
            if not equals:
                chosen = dict.fromkeys(workloads, read(value))
            elif name in workloads:
                own[name] = read(rest)
            else:
                raise ValueError(f"no workload {name!r} here; there are {', '.join(workloads)}")
        except ValueError as error:
            raise ValueError(f"--{option} {value!r}: {error}") from error
    return {**chosen, **own}


def whole_number(text: str) -> int:
    """Read a whole number from 0.

    Raises:
        ValueError: The text is no such number.
    """
    if not text.isascii() or not text.isdigit():
        raise ValueError(f"{text!r}: must be a whole number from 0")
    return int(text)


def positive_number(text: str) -> int:
    """Read a whole number from 1.

    Raises:
        ValueError: The text is no such number.
    """
    number = whole_number(text)
    if not number:
        raise ValueError(f"{text!r}: must be a whole number from 1")
    return number


def share(text: str) -> float:
    """Read a number above 0 and up to 1.

    Raises:
        ValueError: The text is no such number.
    """
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 < number <= 1:
        raise ValueError(f"{text!r}: must be above 0 and at most 1")
    return number
