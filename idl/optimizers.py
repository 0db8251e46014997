"""The optimisers that a shard of the parameter server has, and the options of each; names of the wire."""

from dataclasses import dataclass


@dataclass(frozen=True)
class OptionNames:
    """The names of an optimiser's options.

    Attributes:
        numbers: Options that are numbers.
        switches: Options that are on or off, 1 or 0 on the wire.
    """

    numbers: frozenset[str]
    switches: frozenset[str]


_SGD = frozenset({"lr", "momentum", "weight_decay"})
_ADAM = OptionNames(
    frozenset({"lr", "beta1", "beta2", "eps", "weight_decay"}),
    frozenset({"amsgrad"}),
)

OPTIMIZERS = {
    "sgd": OptionNames(_SGD | {"dampening"}, frozenset({"nesterov"})),
    "adam": _ADAM,
    "adamw": _ADAM,
    "keras_sgd": OptionNames(_SGD, frozenset({"nesterov"})),
    "keras_adam": _ADAM,
    "keras_adamw": _ADAM,
}
"""By name; with the meaning and the defaults that `idl/parameter_server.thrift` gives them."""
