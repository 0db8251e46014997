"""Learning rates that follow the size of the whole batch, by rules; knows no framework.

The factor of an iteration follows from its assignment, so that it is the same for all workers and shards, and
when the iteration is repeated.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from idl.errors import InvalidRequestError
from idl.layout import Group
from idl.plan import Scaling

Rule = Literal["none", "linear", "sqrt", "adascale", "auto"] | Callable[[int, int], float]
"""A rule's name, or a function from the size of the whole batch and the script's first one to the factor."""

Factor = Callable[[Scaling, int], float]

_RULES: dict[str, Factor] = {
    "none": lambda scaling, first: 1.0,
    "linear": lambda scaling, first: scaling.size / first,  # Goyal et al., 2017
    "sqrt": lambda scaling, first: math.sqrt(scaling.size / first),  # Krizhevsky, 2014
    "adascale": lambda scaling, first: scaling.gain,  # Johnson et al., 2020, algorithm 1
}


def unscaled(scaling: Scaling, first: int) -> float:
    """Return 1: the factor where no rule was named."""
    return 1.0


def factor_by(rule: Rule | str, optimizer: str) -> Factor:
    """Return the function from an iteration's scaling, and the script's first batch size, to the factor.

    Args:
        rule: The rule; "auto" is "sqrt" for Adam and AdamW, and "adascale" for SGD.

    Raises:
        InvalidRequestError: There is no such rule; or, when the function is called, a script's own function
            returned something else than a number above 0.
    """
    if callable(rule):
        own = rule

        def factor(scaling: Scaling, first: int) -> float:
            value = own(scaling.size, first)
            if not 0 < value < math.inf:
                raise InvalidRequestError(
                    f"scale_lr({scaling.size}, {first}) returned {value!r}: must be a number above 0"
                )
            return float(value)

        return factor
    name = ("sqrt" if "adam" in optimizer.lower() else "adascale") if rule == "auto" else rule
    if name not in _RULES:
        raise InvalidRequestError(
            f"scale_lr {rule!r}: there are {', '.join(_RULES)}, auto, or a function of the batch's size and "
            f"the first one"
        )
    return _RULES[name]


def scaled(groups: Sequence[Group] | None, factor: float) -> Sequence[Group] | None:
    """Return parameter groups with their learning rates times a factor; None stays None."""
    if groups is None or factor == 1:
        return groups
    return tuple(
        replace(group, options={**group.options, "lr": group.options["lr"] * factor})
        if "lr" in group.options
        else group
        for group in groups
    )
