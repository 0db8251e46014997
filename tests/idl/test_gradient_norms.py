"""The norms of an iteration's gradients: exact identities of their statistics."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from idl.gradient_norms import GradientNorms, StepNorms
from idl.translation import read_norms, wire_norms
from tests.idl.quadratic import SEEDS, SPLITS, norms_of


def close(one, other):
    """Whether two norms are the same but for rounding, against the size of what they are sums of."""
    return (one.contributions, one.samples) == (other.contributions, other.samples) and (
        one.weighted == pytest.approx(other.weighted, rel=1e-12)
        and one.squared == pytest.approx(other.squared, rel=1e-12, abs=1e-12 * one.weighted)
    )


@given(SPLITS, SEEDS)
def test_an_iterations_estimate_is_the_analysis_of_variance(split, seed):
    """S is the weighted spread of the contributions about their mean over n - 1, and G is |g|² - S/B."""
    gradients = np.random.default_rng(seed).normal(size=(len(split), 50))
    norms = norms_of(split, gradients)

    whole = np.asarray(split) @ gradients / sum(split)
    spread = np.asarray(split) @ np.sum((gradients - whole) ** 2, axis=1)
    var = spread / (np.count_nonzero(split) - 1)
    assert norms.var == pytest.approx(var, rel=1e-9)
    assert norms.sqr == pytest.approx(whole @ whole - var / sum(split), rel=1e-9, abs=1e-9)


@given(SPLITS, SEEDS, st.lists(st.integers(0, 60), min_size=1, max_size=4))
def test_norms_of_shards_add_up_to_the_wholes(split, seed, cuts):
    """Shards that hold parts of the elements, some of them none, sum to one that holds all."""
    gradients = np.random.default_rng(seed).normal(size=(len(split), 60))

    total, *others = (norms_of(split, gradients[:, a:b]) for a, b in pairwise([0, *sorted(cuts), 60]))
    for shard in others:
        total += shard
    assert close(total, norms_of(split, gradients))


def test_contributions_without_samples_do_not_count():
    """Even if what was sent is not a number; one contribution alone estimates neither var nor sqr."""
    with_it = GradientNorms.of([(8, 2.0), (0, math.nan), (4, 5.0)], 1.5)
    alone = GradientNorms.of([(8, 2.0), (0, 0.0)], 2.0)

    assert with_it == GradientNorms.of([(8, 2.0), (4, 5.0)], 1.5) == GradientNorms(2, 12, 36.0, 1.5)
    assert math.isnan(alone.var)
    assert math.isnan(alone.sqr)


# -- Consecutive gradients


@given(st.integers(1, 64), st.integers(1, 64), SEEDS)
def test_two_consecutive_gradients_are_two_contributions(first, second, seed):
    """Their norms and that of their difference give what two workers' gradients would."""
    a, b = gradients = np.random.default_rng(seed).normal(size=(2, 50))
    norms = GradientNorms.of_consecutive((first, a @ a), (second, b @ b), (a - b) @ (a - b))

    assert close(norms, norms_of([first, second], gradients))


def test_a_gradient_without_a_predecessor_says_nothing():
    """A first iteration, or one without samples, gives no pair, but the norms of the one gradient."""
    assert GradientNorms.of_consecutive((0, 0.0), (8, 2.5), 2.5) == GradientNorms(1, 8, 20.0, 2.5)


def test_opposite_gradients_have_no_negative_norm():
    """Rounding in the difference of opposite gradients gives a weighted sum of norm 0."""
    norms = GradientNorms.of_consecutive((1, 0.1), (1, 0.1), 0.4000000000000001)

    assert norms.squared == 0
    assert norms.var == pytest.approx(0.2)


@given(SPLITS, SEEDS, st.data())
def test_norms_by_tokens_join_to_the_wholes(split, seed, data):
    """Workers that tell parts of the contributions by tokens sum, over the wire, to who knows all of them."""
    gradients = np.random.default_rng(seed).normal(size=(len(split), 50))
    count = sum(map(bool, split))
    tokens = data.draw(st.lists(st.sampled_from([0.0, 0.5, 3.0, 800.0]), min_size=count, max_size=count))
    counted = [(samples, float(g @ g)) for samples, g in zip(split, gradients, strict=True) if samples]
    cut = data.draw(st.integers(1, count - 1))
    parts = [
        StepNorms(4, GradientNorms.of(counted[part], 1.0, tokens[part]))
        for part in (slice(None, cut), slice(cut, None))
    ]

    joined = StepNorms.joined(4, sum(split), [read_norms(wire_norms(part)) for part in parts])

    if not sum(tokens):
        assert joined is None
        return
    expected = sum(n * norm for n, (_, norm) in zip(tokens, counted, strict=True)) * sum(split) / sum(tokens)
    assert joined.norms.contributions == np.count_nonzero(tokens)
    assert joined.norms.samples == sum(split)
    assert joined.norms.weighted == pytest.approx(expected, rel=1e-12)
