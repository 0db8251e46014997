"""Table of the workloads by name, for the experiments and for the script that their workers run."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

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


@dataclass(frozen=True)
class Training:
    """Workload and its options (ValueError: there is no such workload)."""

    name: str  # name in `WORKLOADS`
    arguments: tuple[str, ...] = ()  # options of the workload, as `train_workload.py` takes them

    def __post_init__(self) -> None:
        if self.name not in WORKLOADS:
            raise ValueError(f"no workload {self.name!r}; there are {', '.join(WORKLOADS)}")

    def options(self, more: Sequence[str] = ()) -> argparse.Namespace:
        """Return the options of `arguments` and `more`; an invalid one ends the program, as in a script."""
        make_parser, _ = WORKLOADS[self.name]
        return make_parser().parse_args([*self.arguments, *more])

    def make(self, options: argparse.Namespace) -> Workload:
        """Make the workload (DataError: its data cannot be read)."""
        _, make = WORKLOADS[self.name]
        return make(options)
