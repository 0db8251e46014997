"""JAX: the parameter server's optimisers under optax's names, with its arguments, defaults and semantics.

An optimiser of optax cannot be sent to the parameter server, since it is a pair of opaque functions. These
are plain values.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from idl.errors import InvalidRequestError

Schedule = Callable[[Any], Any]  # from the number of steps so far to the next one's learning rate


@dataclass(frozen=True)
class Rule:
    """The parameter server's optimiser and its options; to be made by `sgd`, `adam` and `adamw`."""

    name: str  # the optimiser's name in `idl/parameter_server.thrift`
    learning_rate: float | Schedule  # a number, or a schedule of optax
    constants: dict[str, float]  # the other options, by the parameter server's names

    def options(self, step: int) -> dict[str, float]:
        """Return all options of a step; steps are counted from 0."""
        rate = self.learning_rate
        if callable(rate):
            rate = rate(
                jnp.int32(step)
            )  # as optax counts: in Python's numbers some schedules differ a little
        return {"lr": float(rate), **self.constants}


def sgd(
    learning_rate: float | Schedule,
    momentum: float | None = None,
    nesterov: bool = False,
    accumulator_dtype: Any = None,
) -> Rule:
    """Make a rule as `optax.sgd`; `accumulator_dtype` is not supported."""
    _refuse("sgd", accumulator_dtype=accumulator_dtype)
    # Without momentum optax ignores nesterov, but torch, which steps at the parameter server, refuses it.
    nesterov = nesterov and bool(momentum)
    return Rule("sgd", learning_rate, {"momentum": float(momentum or 0), "nesterov": float(nesterov)})


def adam(
    learning_rate: float | Schedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    mu_dtype: Any = None,
    *,
    nesterov: bool = False,
) -> Rule:
    """Make a rule as `optax.adam`; `eps_root`, `mu_dtype` and `nesterov` are not supported."""
    _refuse("adam", eps_root=eps_root, mu_dtype=mu_dtype, nesterov=nesterov)
    constants = {"beta1": float(b1), "beta2": float(b2), "eps": float(eps), "weight_decay": 0.0}
    return Rule("adam", learning_rate, constants)


def adamw(
    learning_rate: float | Schedule,
    b1: float = 0.9,
    b2: float = 0.999,
    eps: float = 1e-8,
    eps_root: float = 0.0,
    mu_dtype: Any = None,
    weight_decay: float = 1e-4,
    mask: Any = None,
    *,
    nesterov: bool = False,
) -> Rule:
    """Make a rule as `optax.adamw`; `eps_root`, `mu_dtype`, `mask` and `nesterov` are not supported."""
    _refuse("adamw", eps_root=eps_root, mu_dtype=mu_dtype, mask=mask, nesterov=nesterov)
    constants = {"beta1": float(b1), "beta2": float(b2), "eps": float(eps)}
    return Rule("adamw", learning_rate, constants | {"weight_decay": float(weight_decay)})


def _refuse(name: str, **lacking: Any) -> None:
    for option, value in lacking.items():
        if value is not None and (not isinstance(value, float | int) or value):
            raise InvalidRequestError(
                f"{name}: {option}={value!r}: the parameter server's {name} lacks this option; leave it out"
            )
