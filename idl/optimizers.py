"""The wire's names of the optimisers of the parameter server, and of the options of each."""

from dataclasses import dataclass


@dataclass(frozen=True)
class OptionNames:
    """The names of an optimiser's options."""

    numbers: frozenset[str]  # names of the options that are numbers
    switches: frozenset[str]  # names of the options that are on or off, 1 or 0 on the wire


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
"""The optimisers by name; `idl/parameter_server.thrift` defines their options' meaning and defaults."""
