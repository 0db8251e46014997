"""Table of the workloads by name, for the experiments and for the script that their workers run.

Also values of options that are given by workload.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, TypeVar

from idl.settings import Setting
from lab.workloads import digits, images, linear, text
from lab.workloads.common import Workload

WORKLOADS: dict[
    str, tuple[Callable[[], argparse.ArgumentParser], Callable[[argparse.Namespace], Workload]]
] = {
    "svm": (partial(linear.parser, "svm"), linear.make_svm),
    "logistic-regression": (partial(linear.parser, "logistic regression"), linear.make_logistic_regression),
    "digits": (digits.parser, digits.make_digits),
    "cifarnet": (images.cifarnet_parser, images.make_cifarnet),
    "resnet32": (images.resnet32_parser, images.make_resnet32),
    "transformer": (text.parser, text.make_transformer),
}


# Samples of a batch by default, over all workers: an iteration takes some tenths of a second.
BATCH_SIZES = {
    "svm": 16_000,
    "logistic-regression": 16_000,
    "digits": 256,
    "cifarnet": 96,
    "resnet32": 64,
    "transformer": 256,
}

WorkloadName = Annotated[str, Setting("What is trained.", choices=WORKLOADS)]
"""Name of a workload."""

Arguments = Annotated[tuple[str, ...], Setting("", positional=True)]
"""Options of the workloads, as `train_workload.py` takes them."""

T = TypeVar("T")


@dataclass(frozen=True)
class Training:
    """Workload and its options (ValueError: there is no such workload)."""

    name: str  # name in `WORKLOADS`
    arguments: tuple[str, ...] = ()  # options of the workload, as `train_workload.py` takes them

    def __post_init__(self) -> None:
        if self.name not in WORKLOADS:
            raise ValueError(f"no workload {self.name!r}; there are {', '.join(WORKLOADS)}")

    def with_options(self, *words: str) -> "Training":
        """Return the training with further options, which go before earlier ones."""
        return replace(self, arguments=(*self.arguments, *words))

    def options(self) -> argparse.Namespace:
        """Return the options of `arguments`; an invalid one ends the program, as in a script."""
        make_parser, _ = WORKLOADS[self.name]
        return make_parser().parse_args(self.arguments)

    def make(self, options: argparse.Namespace) -> Workload:
        """Make the workload (DataError: its data cannot be read)."""
        _, make = WORKLOADS[self.name]
        return make(options)


def by_workload(
    option: str, values: Sequence[str], workloads: Sequence[str], read: Callable[[str], T]
) -> dict[str, T]:
    """Read an option's values: VALUE is for all workloads, NAME=VALUE for one of them, and prevails."""
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
