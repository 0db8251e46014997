"""The optimisers under optax's names, stepped by the parameter server, against optax itself."""

import jax
import numpy as np
import optax
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from idl.errors import InvalidRequestError
from idl.layout import Group, Layout
from ps.shard import Shard
from tests.ps.tensors import slice_of
from worker.jax import rules as jax_rules

ELEMENTS = 5

rates = st.floats(1e-4, 0.5)
betas = st.floats(0.0, 0.999)
epsilons = st.floats(1e-10, 1e-2)
schedules = st.sampled_from(
    [
        lambda rate: rate,
        lambda rate: optax.exponential_decay(rate, 3, 0.5),
        lambda rate: optax.warmup_cosine_decay_schedule(0.0, rate, 4, 15),
        lambda rate: optax.piecewise_constant_schedule(rate, {2: 0.1, 5: 10.0}),
    ]
)


@st.composite
def optimizers(draw):
    """Draw a name, and arguments that optax and evenpace share; some are left to their defaults."""
    name = draw(st.sampled_from(["sgd", "adam", "adamw"]))
    options = {"learning_rate": draw(schedules)(draw(rates))}
    if name == "sgd":
        choices = {"momentum": st.none() | st.floats(0.0, 0.99), "nesterov": st.booleans()}
    else:
        choices = {"b1": betas, "b2": betas, "eps": epsilons}
        if name == "adamw":
            choices["weight_decay"] = st.floats(0.0, 0.1)
    return name, options | draw(st.fixed_dictionaries({}, optional=choices))


def stepped_by_optax(transformation, parameters, gradients):
    """Return optax's parameters after each step."""
    state = transformation.init(parameters)
    for gradient in gradients:
        updates, state = transformation.update(gradient, state, parameters)
        parameters = optax.apply_updates(parameters, updates)
        yield np.asarray(parameters)


def stepped_by_shard(rule, parameters, gradients):
    """Return a shard's parameters after each step, with each step's options pushed."""

    def groups(step):
        return (Group(len(parameters), rule.options(step)),)

    shard = Shard(Layout("float64", rule.name, groups(0)))
    shard.initialise(torch.from_numpy(parameters.copy()), 0)
    for step, gradient in enumerate(gradients):
        contribution = shard.begin(slice_of(step, 0, 1, 1))
        shard.set_options(contribution, groups(step))
        shard.add(contribution, torch.from_numpy(gradient))
        shard.step()
        yield np.frombuffer(shard.parameters()).copy()


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(optimizer=optimizers(), seed=st.integers(0, 2**32 - 1), scale=st.sampled_from([1e-3, 1.0, 1e3]))
def test_steps_are_those_of_optax(optimizer, seed, scale):
    """For any options and schedule, the parameters after 20 random gradients are optax's."""
    name, options = optimizer
    generator = np.random.default_rng(seed)
    parameters = generator.normal(size=ELEMENTS)
    gradients = scale * generator.normal(size=(20, ELEMENTS))
    with jax.enable_x64(True):
        theirs = list(stepped_by_optax(getattr(optax, name)(**options), parameters, gradients))
        ours = list(stepped_by_shard(getattr(jax_rules, name)(**options), parameters, gradients))
    np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9 * scale)


@pytest.mark.parametrize(
    ("make", "option"),
    [
        (lambda: jax_rules.sgd(0.1, accumulator_dtype="bfloat16"), "accumulator_dtype='bfloat16'"),
        (lambda: jax_rules.adam(0.1, eps_root=1e-8), "eps_root=1e-08"),
        (lambda: jax_rules.adam(0.1, nesterov=True), "nesterov=True"),
        (lambda: jax_rules.adamw(0.1, mask={"bias": False}), "mask="),
        (lambda: jax_rules.adamw(0.1, mu_dtype=np.float32), "mu_dtype="),
    ],
)
def test_options_that_the_parameter_server_lacks_are_refused(make, option):
    """Options that the parameter server lacks are refused by name, not ignored."""
    with pytest.raises(InvalidRequestError, match=option):
        make()


def test_values_that_say_what_is_so_anyway_are_taken():
    """An unsupported option may be given with its default, as in a script that lists all defaults."""
    assert jax_rules.adam(0.1, eps_root=0.0, mu_dtype=None, nesterov=False) == jax_rules.adam(0.1)
