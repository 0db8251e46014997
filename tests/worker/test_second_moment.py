"""The second moment that one worker alone keeps of its own gradients."""

import numpy as np
import pytest
import torch

from idl.gradient_norms import GradientNorms, StepNorms
from idl.layout import Group, Layout
from idl.plan import Assignment
from ps.optimizers import make_optimizer
from worker.gradient_norms import OwnNorms
from worker.second_moment import SecondMoment

GROUPS = (Group(70_000, {"lr": 0.1}), Group(2, {}, statistics=True), Group(3, {"beta2": 0.9, "eps": 0.5}))
ELEMENTS = sum(group.elements for group in GROUPS)


def gradients(number, dtype="float64"):
    """Gradients that differ, (number, elements)."""
    return np.random.default_rng(7).normal(size=(number, ELEMENTS)).astype(dtype)


def expected_diagonal(earlier, keras=False):
    """P by the formula, from all gradients so far."""
    beta2 = np.array([0.999] * 70_002 + [0.9] * 3)
    eps = np.array([1e-7 if keras else 1e-8] * 70_002 + [0.5] * 3)
    moment = np.zeros(ELEMENTS)
    for gradient in earlier:
        moment = beta2 * moment + (1 - beta2) * gradient.astype(float) ** 2
    correction = np.sqrt(1 - beta2 ** len(earlier))
    diagonal = correction / (np.sqrt(moment) + eps) if keras else 1 / (np.sqrt(moment) / correction + eps)
    diagonal[70_000:70_002] = 0
    return diagonal


@pytest.mark.parametrize("name", ["adam", "adamw", "keras_adam", "keras_adamw"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_preconditioner_is_the_optimisers(name, dtype):
    """With each group's options, or their defaults, and 0 for statistics."""
    moment = SecondMoment(Layout(dtype, name, GROUPS), np.dtype(dtype))
    every = gradients(12, dtype)
    for gradient in every:
        moment.add(gradient)
    found, expected = moment.diagonal(), expected_diagonal(every, name.startswith("keras"))
    assert found.dtype == dtype
    np.testing.assert_allclose(found, expected, rtol=1e-4 if dtype == "float32" else 1e-10)


@pytest.mark.parametrize("name", ["adam", "keras_adam"])
def test_options_that_are_left_out_are_those_of_the_shards(name):
    """Epsilon is what the shards' optimiser has by default: it decides where gradients are this small."""
    part = torch.zeros(3)
    optimizer = make_optimizer(name, [part], [{"lr": 0.1}])
    group = optimizer.param_groups[0]
    given = {"lr": 0.1, "beta2": group["betas"][1], "eps": group["eps"]}
    left_out, with_them = (
        SecondMoment(Layout("float64", name, (Group(3, own),)), np.dtype("float64"))
        for own in ({"lr": 0.1}, given)
    )
    for _ in range(10):
        left_out.add(np.full(3, 1e-8))
        with_them.add(np.full(3, 1e-8))
    np.testing.assert_array_equal(left_out.diagonal(), with_them.diagonal())


def test_elements_without_a_gradient_count_as_zero():
    """As those of words that have not occurred."""
    moment = SecondMoment(Layout("float64", "adam", (Group(2, {"lr": 0.1}),)), np.dtype("float64"))
    for _ in range(10):
        moment.add(np.array([0.0, 2.0]))
    np.testing.assert_allclose(moment.diagonal(), [0.0, 0.5], rtol=1e-7)


def told(every, optimizer="adam", groups=GROUPS, contributions=lambda iteration: 1):
    """Push all gradients of a worker, and return what it tells of each iteration."""
    layout, norms, result = Layout("float64", optimizer, groups), OwnNorms(), []
    norms.open(layout)
    for iteration, gradient in enumerate(every):
        of_step = GradientNorms(contributions(iteration), 8, 16.0, 2.0)
        norms.take_all(StepNorms(iteration - 1, of_step) if iteration else None)
        norms.take_gradient(Assignment(iteration, 0, 8 * iteration, 8, 8), gradient, layout)
        result.append(norms.take())
    return result


@pytest.mark.parametrize(("optimizer", "begins"), [("adam", 12), ("sgd", 2)])
def test_a_pair_is_preconditioned_by_the_gradients_before_it(optimizer, begins):
    """With Adam the same for both, and independent of both; there is none before ten gradients."""
    every = gradients(24)
    if optimizer == "sgd":
        every[:, 70_000:70_002] = 0  # statistics are no part of a gradient
    pairs = [one for one in told(every, optimizer) if one is not None and one.norms.contributions == 2]
    assert [one.iteration for one in pairs] == list(range(begins, 24, 2))
    for one in pairs:
        first, second = every[one.iteration - 1 : one.iteration + 1]
        if optimizer == "adam":
            diagonal = expected_diagonal(every[1 : one.iteration - 1])
            first, second = first * diagonal, second * diagonal
        mean = (first + second) / 2
        expected = GradientNorms.of([(8, first @ first), (8, second @ second)], mean @ mean)
        assert one.norms.samples == 16
        assert one.norms.weighted == pytest.approx(expected.weighted, rel=1e-9)
        assert one.norms.squared == pytest.approx(expected.squared, rel=1e-9)


def test_the_second_moment_begins_again_after_another_worker_has_contributed():
    """Of the steps that others took part in, it would lack their gradients."""
    found = told(gradients(40), contributions=lambda iteration: 2 if iteration == 15 else 1)
    pairs = [one.iteration for one in found if one is not None and one.norms.contributions == 2]
    # Of iteration 14 the shards have two contributions of their own, which are not a pair.
    assert [one for one in pairs if one != 14] == [12, *range(27, 40, 2)]


def test_with_amsgrad_there_are_no_pairs():
    """The largest second moment so far is the shards' alone."""
    found = told(gradients(24), groups=(Group(ELEMENTS, {"lr": 0.1, "amsgrad": 1.0}),))
    assert all(one is None or one.norms.contributions == 1 for one in found)


@pytest.mark.parametrize(("optimizer", "contributions"), [("sgd", 2), ("adam", 3), ("keras_adamw", 3)])
def test_with_adam_the_shards_norms_are_told_and_not_those_of_micro_batches(optimizer, contributions):
    """Workers have no second moment to precondition them by; those of plain gradients would be others'."""
    norms, part = OwnNorms(), Assignment(0, 0, 0, 8, 16)
    norms.open(Layout("float64", optimizer, GROUPS))
    for count in (3, 5):
        norms.add(part, count, 4.0)
    norms.take_all(StepNorms(0, GradientNorms(3, 16, 40.0, 2.0)))
    assert norms.take().norms.contributions == contributions
