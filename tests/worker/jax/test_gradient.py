"""The mean gradient over batches of any size, in pieces of one shape."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from idl.errors import InvalidRequestError
from idl.plan import Assignment, JobSpec
from worker.data.micro_batches import micro_batches_of
from worker.data.randomness import seed_generators
from worker.data.sliced_batch import SlicedBatch
from worker.data.slices import Slice
from worker.jax.gradient import value_and_grad

FEATURES = 3


def batch_of(size, seed=0):
    """Draw inputs (size, FEATURES) and targets (size,)."""
    generator = np.random.default_rng(seed)
    return {"x": generator.normal(size=(size, FEATURES)), "y": generator.normal(size=size)}


def parameters(seed=1):
    """Draw the parameters of a linear model."""
    generator = np.random.default_rng(seed)
    return {"w": generator.normal(size=FEATURES), "b": generator.normal()}


def losses(params, batch):
    """Return losses, (n,), not linear in the parameters, so that means and gradients of parts differ."""
    return jnp.log(jnp.cosh(batch["x"] @ params["w"] + params["b"] - batch["y"]))


steps = {micro_batch_size: value_and_grad(losses, micro_batch_size) for micro_batch_size in (1, 3, 8, 16)}


@pytest.mark.slow
@settings(deadline=None)
@given(size=st.integers(1, 40), micro_batch_size=st.sampled_from(sorted(steps)), seed=st.integers(0, 1000))
def test_it_is_the_mean_over_the_batch(size, micro_batch_size, seed):
    """For any division into pieces, value and gradient are those of the whole batch."""
    batch, params = batch_of(size, seed), parameters(seed)
    error = batch["x"] @ params["w"] + params["b"] - batch["y"]
    slopes = np.tanh(error)  # of log(cosh(error))
    expected = np.log(np.cosh(error)).mean(), {"w": slopes @ batch["x"] / size, "b": slopes.mean()}
    with jax.enable_x64(True):
        result = steps[micro_batch_size](params, batch)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-13), result, expected)


def test_a_run_with_many_batch_sizes_compiles_once():
    """With twenty batch sizes, the loss is traced at most twice, in the first batch."""
    traces = []

    def counted(params, batch):
        traces.append(batch["x"].shape)
        return losses(params, batch)

    step = value_and_grad(counted, 8)
    params = parameters()
    for size in range(1, 61, 3):
        step(params, batch_of(size))
    assert len(traces) <= 2
    assert set(traces) == {(8, FEATURES)}


def test_what_fills_up_a_piece_leaves_no_trace():
    """Losses whose gradient is undefined or infinite at zero see real samples only."""

    def roots(params, batch):
        return jnp.sqrt(params * batch)  # its gradient at 0 is infinite, and 0 times that no number

    value, gradient = value_and_grad(roots, 8)(jnp.float32(4.0), np.ones(3, np.float32))
    assert (float(value), float(gradient)) == (2.0, 0.25)


def test_each_piece_gets_the_other_arguments_and_gives_its_share_of_aux():
    """The aux is the mean over the pieces, weighted by their samples."""

    def shifted(params, batch, shift):
        return params * batch + shift, {"mean": batch.mean(), "shift": shift}

    step = value_and_grad(shifted, 2, has_aux=True)
    # Pieces (1, 2), (3, 4), and (5, 1) of which the 1 fills up.
    (value, aux), gradient = step(2.0, np.arange(1.0, 6.0), 10.0)
    assert float(value) == 16.0
    assert float(gradient) == 3.0
    assert float(aux["mean"]) == pytest.approx((2 * 1.5 + 2 * 3.5 + 1 * 3.0) / 5)
    assert float(aux["shift"]) == pytest.approx(10.0)


def test_half_precision_is_summed_in_float32():
    """A thousand gradients that vanish beside their sum in bfloat16 all count."""
    params = jnp.ones((), jnp.bfloat16)
    _, gradient = value_and_grad(lambda p, x: p * x, 1)(params, np.full(1000, 0.5, np.float32))
    assert gradient.dtype == jnp.float32
    assert float(gradient) == pytest.approx(0.5, rel=1e-3)


def sliced(batch, assignment):
    """A worker's part of a batch in micro-batches of 3, as a loader gives it."""
    spec = JobSpec(100, 40, micro_batch=3)
    parts = micro_batches_of(spec, np.arange(100), assignment)
    return SlicedBatch(
        Slice(assignment, np.concatenate([part.indices for part in parts]), parts),
        lambda part: jax.tree.map(lambda array: array[part.indices], batch),
        "value_and_grad",
        seed_generators,
    )


@pytest.mark.ci
def test_micro_batches_are_the_pieces_each_with_a_key_of_its_own():
    """Whatever the shares, the weighted means over the workers are the same, batch statistics and all."""
    batch, params, key = batch_of(100), parameters(), jax.random.key(3)
    drawn = {}

    def random_losses(params, batch, shift, rng):
        noise = jax.random.normal(rng, batch["y"].shape)
        jax.debug.callback(lambda x, key: drawn.setdefault(float(x), key.tolist()), batch["x"][0, 0], noise)
        scale = batch["x"].std(axis=0)
        return losses(params, {**batch, "x": batch["x"] / scale, "y": batch["y"] + noise}) + shift, scale

    step = value_and_grad(random_losses, has_aux=True, rng=key)

    def mean(counts):
        """The mean over workers with so many samples each, of a batch that begins at position 40."""
        starts = 40 + np.cumsum([0, *counts[:-1]])
        parts = [
            step(params, sliced(batch, Assignment(1, 2, int(start), count, 40, batch_start=40)), 0.5)
            for start, count in zip(starts, counts, strict=True)
        ]
        return jax.tree.map(lambda *leaves: np.average(leaves, axis=0, weights=counts), *parts)

    with jax.enable_x64(True):
        whole = mean([40])
        jax.effects_barrier()
        for counts in ([3, 0, 37], [12, 9, 15, 4], [36, 2, 2]):
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), mean(counts), whole)
        jax.effects_barrier()
        expected = jax.random.normal(jax.random.fold_in(jax.random.fold_in(key, 2), 43), (3,))
    assert drawn[float(batch["x"][43, 0])] == expected.tolist()
    assert len(drawn) == 14  # as many micro-batches; the one without weight is one of them


def test_sizes_are_given_in_one_place():
    """Of the loader's micro-batches and the pieces' size here, a job has one; keys are for the former."""
    of_loader = sliced(batch_of(100), Assignment(0, 0, 0, 6, 40, batch_start=0))
    with pytest.raises(InvalidRequestError, match="micro_batch_size 8: leave it out"):
        steps[8](parameters(), of_loader)
    with pytest.raises(TypeError, match=r"micro-batches: .*value_and_grad"):
        _, _ = of_loader
    for step in (value_and_grad(losses), value_and_grad(losses, 8, rng=jax.random.key(0))):
        with pytest.raises(InvalidRequestError, match="make the loader with micro_batch="):
            step(parameters(), batch_of(4))


def test_mistakes_are_named():
    """A mean in place of losses, an empty batch, unequal arrays and a size of 0 are refused."""
    params, batch = parameters(), batch_of(4)
    with pytest.raises(InvalidRequestError, match=r"shape \(\) for 8 samples"):
        value_and_grad(lambda p, b: losses(p, b).mean(), 8)(params, batch)
    step = value_and_grad(losses, 8)
    with pytest.raises(InvalidRequestError, match="at least 1"):
        step(params, batch_of(0))
    with pytest.raises(InvalidRequestError, match="as many samples"):
        step(params, batch | {"y": np.zeros(3)})
    with pytest.raises(InvalidRequestError, match="micro_batch_size 0"):
        value_and_grad(losses, 0)
    with pytest.raises(InvalidRequestError, match=r"missing a required .*'rng'.*rng=jax\.random\.key"):
        value_and_grad(lambda p, b, rng: losses(p, b), 8)(params, batch)
