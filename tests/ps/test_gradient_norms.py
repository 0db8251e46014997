"""The norms of gradients that a shard takes as they pass: those of the gradients themselves."""

import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from idl.exact_sums import FixedPoint
from idl.gradient_norms import GradientNorms
from idl.layout import Group, Layout
from ps.backup_shard import BackupShard
from ps.exact_shard import ExactShard
from ps.optimizers import DTYPES
from ps.shard import GradientSink, Shard
from tests.ps.tensors import plain_sgd, push, send, slice_of, slices, tensor, wire


def gradients_of(counts, elements, seed=0, dtype=torch.float64):
    """A mean gradient for each count, (elements,)."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(elements, dtype=dtype, generator=generator) + 1 for _ in counts]


def norms_of(counts, gradients):
    """The norms worked out from the gradients at once."""
    total = sum(counts)
    mean = sum(count * gradient.double() for count, gradient in zip(counts, gradients, strict=True)) / total
    each = [(count, float(g.double().square().sum())) for count, g in zip(counts, gradients, strict=True)]
    return GradientNorms.of(each, float(mean.square().sum()))


def assert_close(found, expected, rel=1e-9):
    """Check that norms are the same but for rounding."""
    assert (found.contributions, found.samples) == (expected.contributions, expected.samples)
    assert found.weighted == pytest.approx(expected.weighted, rel=rel)
    assert found.squared == pytest.approx(expected.squared, rel=rel)


@pytest.mark.parametrize("deterministic", [False, True])
@settings(deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(1, 40), st.integers(0, 2**32))
def test_the_norms_are_those_of_the_contributions_and_of_their_mean(deterministic, counts, elements, seed):
    """However uneven the slices are; they are known once the step is taken, and of its iteration."""
    gradients = gradients_of(counts, elements, seed)
    shard = plain_sgd(elements, deterministic=deterministic)
    for (start, count), gradient in zip(slices(counts), gradients, strict=True):
        push(shard, start, count, sum(counts), gradient, [3, 1])
    assert shard.norms is None
    shard.step()
    assert shard.norms.iteration == 0
    assert_close(shard.norms.norms, norms_of(counts, gradients))


def test_norms_of_millions_of_float32_are_right():
    """Added up one by one, squares would be lost beside their sum: it would be too small by a thousandth."""
    elements = 5_000_000
    gradients = gradients_of((1, 3), elements, dtype=torch.float32)
    shard = plain_sgd(elements, "float32")
    push(shard, 0, 1, 4, gradients[0])
    push(shard, 1, 3, 4, gradients[1])
    shard.step()
    assert_close(shard.norms.norms, norms_of((1, 3), gradients), rel=1e-5)


def test_a_push_that_broke_off_and_came_again_in_pieces_leaves_no_norms():
    """Its first elements are of one gradient, the others of two: there is no number of contributions."""
    elements = 40_000  # more than one of the pieces in which a shard adds
    gradient = gradients_of((1,), elements)[0]
    shard = plain_sgd(elements)
    push(shard, 0, 4, 7, gradient)
    broken = GradientSink(shard, shard.begin(slice_of(0, 4, 3, 7)))
    send(broken, wire(gradient)[: 8 * (elements - 1)])
    broken.abort()
    push(shard, 4, 1, 7, gradient)
    push(shard, 5, 2, 7, gradient)
    shard.step()
    assert shard.version == 1
    assert shard.norms is None


def test_norms_are_of_the_last_step_alone():
    """A step whose norms cannot be had does not show those of the one before."""
    shard = plain_sgd(2)
    push(shard, 0, 4, 4, tensor(1, 2))
    shard.step()
    assert shard.norms is not None
    push(shard, 0, 4, 4, tensor(float("nan"), 2))
    shard.step()
    assert shard.norms is None


def test_exact_sums_have_those_of_the_means_that_they_stand_for():
    """Integers of fixed point are turned back into numbers, within their unit."""
    counts, layout = (4, 8), Layout("float64", "sgd", (Group(5, {"lr": 1.0}),))
    shard = ExactShard(layout)
    shard.initialise(torch.zeros(5, dtype=DTYPES["float64"]), 0)
    gradients = gradients_of(counts, 5)
    for (start, count), gradient in zip(slices(counts), gradients, strict=True):
        sums = torch.zeros(5, dtype=torch.int64)
        FixedPoint(12).add(sums.numpy(), gradient.numpy(), count)
        push(shard, start, count, 12, sums)
    shard.step()
    assert_close(shard.norms.norms, norms_of(counts, gradients), rel=1e-8)


def preconditioned(groups, optimizer, kind=Shard, **options):
    """Make a shard with an optimiser that has a preconditioner, and parameters of 0."""
    shard = kind(Layout("float64", optimizer, groups), **options)
    shard.initialise(torch.zeros(shard.layout.elements, dtype=torch.float64), 0)
    return shard


def step_with(shard, counts, gradients):
    """Push a batch's slices, and step."""
    for (start, count), gradient in zip(slices(counts), gradients, strict=True):
        push(shard, start, count, sum(counts), gradient)
    shard.step()


def mean_of(counts, gradients):
    """The weighted mean of gradients, (elements,)."""
    return sum(count * one for count, one in zip(counts, gradients, strict=True)) / sum(counts)


@pytest.mark.parametrize("amsgrad", [0.0, 1.0])
@pytest.mark.parametrize("name", ["adam", "adamw", "keras_adam", "keras_adamw"])
def test_with_adam_gradients_are_preconditioned_by_the_second_moment_before_the_step(name, amsgrad):
    """That after each tenth step, for ten steps; there are no norms before, and statistics do not count."""
    options = [
        {"lr": 0.01, "amsgrad": amsgrad, **own} for own in ({}, {"beta1": 0.8, "beta2": 0.95, "eps": 0.1})
    ]
    statistics = Group(2, {}, statistics=True)
    shard = preconditioned((Group(3, options[0]), statistics, Group(4, options[1])), name)
    beta2 = torch.tensor([0.999] * 5 + [0.95] * 4, dtype=torch.float64)
    keras = name.startswith("keras")
    eps = torch.tensor([1e-7 if keras else 1e-8] * 5 + [0.1] * 4, dtype=torch.float64)
    counts, moment, largest = (2, 5, 1), torch.zeros(9, dtype=torch.float64), torch.zeros(9).double()
    for step in range(32):
        gradients = gradients_of(counts, 9, seed=step)
        gradients = [0.7**step * g for g in gradients]  # so that amsgrad's largest moment is another one
        if step in (10, 20, 30):
            used, correction = largest if amsgrad else moment, (1 - beta2**step).sqrt()
            diagonal = correction / (used.sqrt() + eps) if keras else 1 / (used.sqrt() / correction + eps)
            diagonal[3:5] = 0
        step_with(shard, counts, gradients)
        if step < 10:
            assert shard.norms is None
        else:
            assert shard.norms.iteration == step
            assert_close(shard.norms.norms, norms_of(counts, [g * diagonal for g in gradients]), rel=1e-6)
        moment = beta2 * moment + (1 - beta2) * mean_of(counts, gradients) ** 2
        largest = torch.maximum(largest, moment)


def test_with_adam_an_element_without_a_second_moment_counts_as_zero():
    """Divided by epsilon, its first gradient would be all that is seen: a rare word's embedding, say."""
    shard = preconditioned((Group(3, {"lr": 0.01}),), "adam")
    counts = (3, 4)
    for step in range(11):
        gradients = gradients_of(counts, 3, seed=step)
        for gradient in gradients:
            gradient[2] *= step == 10
        step_with(shard, counts, gradients)
    alone = preconditioned((Group(2, {"lr": 0.01}),), "adam")
    for step in range(11):
        step_with(alone, counts, [gradient[:2] for gradient in gradients_of(counts, 3, seed=step)])
    assert_close(shard.norms.norms, alone.norms.norms)


def test_with_adam_a_shard_that_is_restored_preconditions_by_what_it_restores():
    """The second moment is in the snapshot; what had been used before the restoration is not used again."""
    make = functools.partial(preconditioned, (Group(5, {"lr": 0.01}),), "adam")
    counts, shard, other = (3, 4), make(), make()
    for step in range(25):
        step_with(shard, counts, gradients_of(counts, 5, seed=step))
        step_with(other, counts, gradients_of(counts, 5, seed=100 + step))
    snapshot = shard.snapshot().copied()
    diagonal = 1 / ((snapshot.state[0]["exp_avg_sq"] / (1 - 0.999**25)).sqrt() + 1e-8)
    other.restore(snapshot)
    gradients = gradients_of(counts, 5, seed=25)
    step_with(other, counts, gradients)
    assert_close(other.norms.norms, norms_of(counts, [g * diagonal for g in gradients]))


def test_backup_and_held_gradients_are_preconditioned_likewise():
    """A gradient is measured as it arrives, whether or not it is added at once."""
    groups, counts = (Group(5, {"lr": 0.01}),), (3, 4)
    shards = [
        preconditioned(groups, "adamw"),
        preconditioned(groups, "adamw", deterministic=True),
        preconditioned(groups, "adamw", BackupShard, replicas_to_aggregate=2),
    ]
    for step in range(11):
        for shard in shards:
            step_with(shard, counts, gradients_of(counts, 5, seed=step))
    for shard in shards[1:]:
        assert_close(shard.norms.norms, shards[0].norms.norms)
