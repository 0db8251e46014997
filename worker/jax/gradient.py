"""JAX: the mean gradient over a slice of any size, in pieces of one shape.

`jax.jit` compiles again for each shape, and batch sizes change. Padding each slice to the largest size would
make the time independent of the batch size, so that nothing could be balanced. This module knows no session
and no wire.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from idl.errors import InvalidRequestError


def value_and_grad(
    loss_fn: Callable[..., Any], micro_batch_size: int, *, has_aux: bool = False
) -> Callable[..., Any]:
    """Do as `jax.value_and_grad` of the mean loss, for batches of any size, and compile only once.

    A batch is processed in pieces of `micro_batch_size` samples. The last one is padded with the batch's
    first samples, whose losses are left out; so it takes as long as a full one. Start workers with
    `--granularity` equal to `micro_batch_size`, and batch sizes are multiples of it wherever possible.

    Args:
        loss_fn: `loss_fn(params, batch, *rest)` returns the losses of a batch's samples, (n,); with
            `has_aux`, a pair of these and a pytree of arrays, such as new batch statistics. It is compiled
            here: do not wrap it in `jax.jit`. Random numbers drawn in it repeat from piece to piece.
        micro_batch_size: Samples in a piece; at least 1.
        has_aux: Whether `loss_fn` returns such a pair.

    Returns:
        A function of the same arguments, which returns `(loss, gradient)`, or `((loss, aux), gradient)`: the
        means over the batch's samples. `batch` is a pytree of NumPy arrays, (n, ...) each. Half-precision
        gradients are summed, and returned, in float32. `aux` is the mean over the pieces, weighted by their
        samples; a piece's own is made from its padding as well.

    Raises:
        InvalidRequestError: The size is not allowed; or, when it is called, the losses are not one for each
            sample, or the batch has no samples.
    """
    if micro_batch_size < 1:
        raise InvalidRequestError(f"micro_batch_size {micro_batch_size}: must be at least 1")

    def part(params: Any, piece: Any, count: Any, total: Any, *rest: Any) -> tuple[Any, Any]:
        """Return the part of the loss of `total` samples of a piece with `count` real ones, and its aux."""
        result = loss_fn(params, piece, *rest)
        losses, aux = result if has_aux else (result, None)
        if jnp.shape(losses) != (micro_batch_size,):
            raise InvalidRequestError(
                f"loss_fn gave losses of shape {jnp.shape(losses)} for {micro_batch_size} samples: it must "
                f"give one for each sample, not their mean"
            )
        # Not a product with zeros, which would keep a NaN.
        kept = jnp.where(jnp.arange(micro_batch_size) < count, _wide(losses), 0)
        return kept.sum() / total, jax.tree.map(lambda leaf: _wide(leaf) * count / total, aux)

    def piecewise(*arguments: Any) -> Any:
        return jax.tree.map(_wide, jax.value_and_grad(part, has_aux=True)(*arguments))

    @jax.jit
    def zeros(*arguments: Any) -> Any:
        return jax.tree.map(jnp.zeros_like, jax.eval_shape(piecewise, *arguments))

    def add(sums: Any, *arguments: Any) -> Any:
        return jax.tree.map(jnp.add, sums, piecewise(*arguments))

    add = jax.jit(add, donate_argnums=0)

    def of_batch(params: Any, batch: Any, *rest: Any) -> Any:
        batch = jax.tree.map(np.asarray, batch)
        total = _samples(batch)
        sums = None
        for begin in range(0, total, micro_batch_size):
            rows = np.arange(begin, begin + micro_batch_size) % total
            piece = jax.tree.map(lambda array, rows=rows: array[rows], batch)
            count = min(micro_batch_size, total - begin)
            arguments = (params, piece, np.int32(count), np.int32(total), *rest)
            sums = add(zeros(*arguments) if sums is None else sums, *arguments)
        assert sums is not None
        (loss, aux), gradient = sums
        return ((loss, aux), gradient) if has_aux else (loss, gradient)

    return of_batch


def _wide(array: Any) -> Any:
    """Convert an array to at least float32, as sums over many pieces need it."""
    return jnp.asarray(array, jnp.promote_types(jnp.result_type(array), jnp.float32))


def _samples(batch: Any) -> int:
    shapes = [array.shape for array in jax.tree.leaves(batch)]
    rows = {shape[:1] for shape in shapes}
    if len(rows) != 1 or rows <= {(), (0,)}:
        raise InvalidRequestError(f"a batch of shapes {shapes}: all must have as many samples, at least 1")
    return int(rows.pop()[0])
