"""The JAX adapter does what every adapter does."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.worker.contract import Contract
from worker.jax.loader import DataLoader
from worker.jax.optimizer import distribute
from worker.jax.rules import sgd


class Sgd:
    """The rule `sgd`; see `tests.worker.contract.Sgd`."""

    def __init__(self, start, loader, rates=(1.0,), dtypes=None, **options):
        constants = [optax.constant_schedule(rate) for rate in rates]
        rule = sgd(optax.join_schedules(constants, list(range(1, len(rates)))))
        self._dtypes = dtypes or ["float32"] * len(start)
        self._optimizer = distribute(rule, self._arrays(start), loader, **options)

    def _arrays(self, values):
        return [jnp.asarray(value, dtype) for value, dtype in zip(values, self._dtypes, strict=True)]

    @property
    def values(self):
        """The parameters."""
        return [np.asarray(value, float) for value in self._optimizer.params]

    @property
    def dtypes(self):
        """The parameters' types."""
        return [value.dtype.name for value in self._optimizer.params]

    def step(self, *gradients):
        """Take a step."""
        self._optimizer.step(self._arrays(gradients))


class TestJax(Contract):
    """With DataLoader, distribute and sgd of `evenpace.jax`."""

    loader = DataLoader
    sgd = Sgd

    @pytest.fixture(autouse=True)
    def _float64(self):
        """Have JAX's arrays of float64 be of it."""
        jax.config.update("jax_enable_x64", True)
        yield
        jax.config.update("jax_enable_x64", False)
