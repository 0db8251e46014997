"""Keras's optimisers at the parameter server; keras_cases.py compares their steps with Keras's own."""

import pytest
import torch

from idl.errors import InvalidRequestError
from ps.optimizers import make_optimizer


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("keras_sgd", {"lr": -1.0}, "lr -1.0"),
        ("keras_sgd", {"lr": 1.0, "momentum": 1.5}, "momentum 1.5"),
        ("keras_sgd", {"lr": 1.0, "dampening": 0.5}, "no option 'dampening'"),
        ("keras_adam", {"lr": 1.0, "beta1": 0.9, "beta2": 1.0}, "beta1 and beta2.*1.0"),
        ("keras_adam", {"lr": 1.0, "eps": -1.0}, "eps -1.0"),
        ("keras_adamw", {"lr": 1.0, "weight_decay": -0.1}, "weight_decay -0.1"),
    ],
)
def test_bad_options_are_named(name, options, said):
    """An option's value that is not allowed is refused by name."""
    with pytest.raises(InvalidRequestError, match=said):
        make_optimizer(name, [torch.zeros(1)], [options])
