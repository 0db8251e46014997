"""Functions that are compiled in several parts give what they give as a whole."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worker.jax.staged import Staged

TABLE = np.arange(12.0).reshape(3, 4)


def function(sums, arguments, scale):
    """Return results that depend on each other, a constant, an argument, and a number."""
    first = jnp.sin(arguments["x"] @ TABLE) * scale
    second = jax.lax.scan(lambda carry, row: (carry + row, row * 2), jnp.zeros(4), first)
    third = jax.random.normal(jax.random.fold_in(jax.random.key(0), 3), (2,)) + second[0][:2]
    return {"others": (arguments["y"], 7, first.sum()), "chosen": [first, second, third + sums, first]}


STAGES = [[], [[0]], [[3], [1]], [[2], [0, 1], [3]], [[4, 3, 2, 1, 0]]]


@pytest.mark.ci
@pytest.mark.parametrize("stages", STAGES, ids=str)
def test_results_are_those_of_the_whole(stages):
    """For any choice of stages, with arrays of JAX, of NumPy, and numbers."""
    staged = Staged(function, lambda result: result["chosen"])
    for x, scale in ((np.ones((5, 3), np.float32), 2.0), (jnp.ones((2, 3)), np.float32(0.5))):
        arguments = {"x": x, "y": jnp.arange(3)}
        expected, sums = jax.jit(function)(jnp.ones(2), arguments, scale), jnp.ones(2)
        found = staged(stages, sums, arguments, scale)
        assert sums.is_deleted()
        assert jax.tree.structure(found) == jax.tree.structure(expected)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found, expected)


def test_each_form_of_the_arguments_is_traced_once():
    """Another shape, another type and a number in place of an array are other forms; other values are not."""
    traces = []

    def traced(sums, x, y):
        traces.append((x.shape, y))
        return [x + y, x * y]

    staged = Staged(traced, lambda result: result)
    for factor in (1.0, 2.0):
        for x in (jnp.ones(3), jnp.ones(4), jnp.ones(3, jnp.float16)):
            for y in (factor, np.float32(factor)):
                expected = [x + y, x * y]
                for result, other in zip(staged([[1]], (), x, y), expected, strict=True):
                    assert result.dtype == other.dtype
                    np.testing.assert_array_equal(result, other)
    assert len(traces) == 6
