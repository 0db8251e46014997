"""JAX: the mean gradient over a slice of any size, in pieces of one shape, or in its micro-batches.

`jax.jit` compiles again for each shape, and batch sizes change. Padding each slice to the largest size would
make the time independent of the batch size, so that nothing could be balanced. This module knows no session
and no wire.
"""

import inspect
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from idl.errors import InvalidRequestError
from worker.data.sliced_batch import SlicedBatch
from worker.jax.measured_batch import MeasuredBatch
from worker.jax.staged import Staged

if TYPE_CHECKING:  # it needs no services to run
    from worker.jax.gradient_push import GradientPush

_PIECE = 2**16  # elements


def _check_takes(loss_fn: Callable[..., Any], *arguments: Any, **key: Any) -> None:
    """Check that a loss can be called with these arguments (InvalidRequestError: it cannot)."""
    try:
        takes = inspect.signature(loss_fn)
    except ValueError:  # it has none
        return
    try:
        takes.bind(*arguments, **key)
    except TypeError as error:
        raise InvalidRequestError(
            f"loss_fn: {error}: it is called with the parameters, a part of the batch, what else the step "
            f"is given, and rng= where value_and_grad has a key: give one, as by rng=jax.random.key(0), if "
            f"it draws numbers, as dropout does"
        ) from error


def value_and_grad(
    loss_fn: Callable[..., Any],
    micro_batch_size: int | None = None,
    *,
    has_aux: bool = False,
    rng: Any = None,
) -> "ValueAndGrad":
    """Do as `jax.value_and_grad` of the mean loss, for batches of any size, and compile only for a few.

    In a job with micro-batches, these are the pieces that a batch is processed in; they have three sizes at
    most for each size of the whole batch. The mean gradient, and the mean of `aux`, then depend on the whole
    batch alone, and not on the workers' shares.

    In a job without, a batch is processed in pieces of `micro_batch_size` samples. The last one is padded
    with the batch's first samples, whose losses are left out; so it takes as long as a full one. Start
    workers with `--granularity` equal to `micro_batch_size`, and batch sizes are multiples of it wherever
    possible.

    Args:
        loss_fn: `loss_fn(params, batch, *rest)` returns the losses of a batch's samples, (n,); with
            `has_aux`, a pair of these and a pytree of arrays, such as new batch statistics; with `rng`, it
            takes a key, `rng=`, too. It is compiled here: do not wrap it in `jax.jit`.
        micro_batch_size: Samples in a piece, at least 1; to be left out in a job with micro-batches.
        has_aux: Whether `loss_fn` returns such a pair.
        rng: A key of `jax.random`, the same on all workers, in a job with micro-batches: `loss_fn` gets
            `fold_in(fold_in(rng, epoch), position)` for the micro-batch at a position of the epoch.

    Returns:
        A function of the same arguments, which returns `(loss, gradient)`, or `((loss, aux), gradient)`: the
        means over the batch's samples. `batch` is what the loader yields, or a pytree of NumPy arrays,
        (n, ...) each. Half-precision gradients are summed, and returned, in float32. `aux` is the mean over
        the pieces, weighted by their samples; a piece's own is made from its padding as well.

    Raises:
        InvalidRequestError: The size is not allowed; or, when it is called, the loader has another, the
            losses are not one for each sample, or the batch has no samples.
    """
    return ValueAndGrad(loss_fn, micro_batch_size, has_aux, rng)


class ValueAndGrad:
    """The function that `value_and_grad` returns.

    Args:
        loss_fn: As there, as are the others.
        micro_batch_size: The samples in a piece.
        has_aux: Whether `loss_fn` returns a pair.
        rng: The key.

    Attributes:
        taker: Takes gradients while they are computed. The pass over a batch's last piece, which completes
            the sums, is then compiled in stages.

    Raises:
        InvalidRequestError: The size is not allowed.
    """

    def __init__(
        self, loss_fn: Callable[..., Any], micro_batch_size: int | None, has_aux: bool, rng: Any
    ) -> None:
        if micro_batch_size is not None and micro_batch_size < 1:
            raise InvalidRequestError(f"micro_batch_size {micro_batch_size}: must be at least 1")
        self.taker: GradientPush | None = None
        self._micro_batch_size = micro_batch_size
        self._has_aux = has_aux
        self._rng = rng

        def part(params: Any, piece: Any, count: Any, total: Any, place: Any, *rest: Any) -> tuple[Any, Any]:
            """Return the part of a loss of `total` samples of a piece with `count` real ones, and its aux."""
            size = _samples(piece)
            key = (
                {}
                if rng is None
                else {"rng": jax.random.fold_in(jax.random.fold_in(rng, place[0]), place[1])}
            )
            _check_takes(loss_fn, params, piece, *rest, **key)
            result = loss_fn(params, piece, *rest, **key)
            losses, aux = result if has_aux else (result, None)
            if jnp.shape(losses) != (size,):
                raise InvalidRequestError(
                    f"loss_fn gave losses of shape {jnp.shape(losses)} for {size} samples: it must give one "
                    f"for each sample, not their mean"
                )
            # Not a product with zeros, which would keep a NaN.
            kept = jnp.where(jnp.arange(size) < count, _wide(losses), 0)
            return kept.sum() / total, jax.tree.map(lambda leaf: _wide(leaf) * count / total, aux)

        def piecewise(*arguments: Any) -> Any:
            return jax.tree.map(_wide, jax.value_and_grad(part, has_aux=True)(*arguments))

        def zeros(*arguments: Any) -> Any:
            return jax.tree.map(jnp.zeros_like, jax.eval_shape(piecewise, *arguments))

        def add(sums: Any, *arguments: Any) -> Any:
            return jax.tree.map(jnp.add, sums, piecewise(*arguments))

        def add_measured(sums: Any, *arguments: Any) -> Any:
            result, gradient = piecewise(*arguments)
            return *jax.tree.map(jnp.add, sums, (result, gradient)), squared_norm(gradient)

        self._zeros = jax.jit(zeros)
        # By whether the norms of pieces' gradients are measured.
        self._add = {False: jax.jit(add, donate_argnums=0), True: jax.jit(add_measured, donate_argnums=0)}
        self._add_last = {False: Staged(add, _gradient_of), True: Staged(add_measured, _gradient_of)}

    def __call__(self, params: Any, batch: Any, *rest: Any) -> Any:
        """Return value and gradient, as `value_and_grad` says."""
        pieces, number = self._pieces(batch)
        measured = batch if isinstance(batch, MeasuredBatch) and batch.measures else None
        measures = measured is not None
        taker = self.taker if self.taker is not None and self.taker.begin(params) else None
        sums, squares = None, []
        for left, arguments in zip(reversed(range(number)), pieces, strict=True):
            before = self._zeros(params, *arguments, *rest) if sums is None else sums
            if taker is not None and not left:
                found = self._add_last[measures](taker.stages, before, params, *arguments, *rest)
            else:
                found = self._add[measures](before, params, *arguments, *rest)
            sums, of_piece = found[:2], found[2:]
            squares.extend(of_piece)
        assert sums is not None
        (loss, aux), gradient = sums
        if measured is not None:
            measured.take(gradient, squares)
        if taker is not None:
            taker.take(gradient)
        return ((loss, aux), gradient) if self._has_aux else (loss, gradient)

    def _pieces(self, batch: Any) -> tuple[Iterator[tuple[Any, ...]], int]:
        """Return a batch's pieces, each with its real samples, the batch's, its place; and their number."""
        size = self._micro_batch_size
        if isinstance(batch, SlicedBatch):
            if size is not None:
                raise InvalidRequestError(
                    f"micro_batch_size {size}: leave it out, since the loader has micro_batch="
                )
            return _micro_batches(batch), len(batch)
        if size is None or self._rng is not None:
            raise InvalidRequestError(
                f"micro_batch_size {size}, rng {self._rng}: make the loader with micro_batch=, "
                f"or give micro_batch_size, and no rng"
            )
        batch = jax.tree.map(np.asarray, batch)
        return _padded(batch, size), -(-_samples(batch) // size)


def _gradient_of(found: Any) -> Any:
    return found[1]


def squared_norm(gradient: Any) -> Any:
    """Return the squared norm of a pytree of arrays; in pieces, since long sums of float32 lose digits."""

    def of(leaf: Any) -> Any:
        flat = jnp.ravel(leaf)
        if flat.size <= _PIECE:
            return jnp.vdot(flat, flat)
        rows = jnp.pad(flat, (0, -flat.size % _PIECE)).reshape(-1, _PIECE)
        return (rows * rows).sum(axis=1).sum()

    return sum(map(of, jax.tree.leaves(gradient)), jnp.float32(0))


def _padded(batch: Any, size: int) -> Iterator[tuple[Any, ...]]:
    """Yield a batch's pieces of one size, with their real samples, the batch's, and no place in an epoch."""
    total = _samples(batch)
    for begin in range(0, total, size):
        rows = np.arange(begin, begin + size) % total
        piece = jax.tree.map(lambda array, rows=rows: array[rows], batch)
        yield piece, np.int32(min(size, total - begin)), np.int32(total), np.zeros(2, np.uint32)


def _micro_batches(batch: SlicedBatch) -> Iterator[tuple[Any, ...]]:
    """Yield a slice's micro-batches, with their samples, the slice's, and their epoch and position there."""
    total = np.int32(len(batch.part.indices))
    for part in batch.micro_batches():
        place = np.array([part.epoch, part.position], np.uint64).astype(np.uint32)
        yield batch.load(part), np.int32(len(part.indices)), total, place


def _wide(array: Any) -> Any:
    """Convert an array to at least float32, as sums over many pieces need it."""
    return jnp.asarray(array, jnp.promote_types(jnp.result_type(array), jnp.float32))


def _samples(batch: Any) -> int:
    shapes = [array.shape for array in jax.tree.leaves(batch)]
    rows = {shape[:1] for shape in shapes}
    if len(rows) != 1 or rows <= {(), (0,)}:
        raise InvalidRequestError(f"a batch of shapes {shapes}: all must have as many samples, at least 1")
    return int(rows.pop()[0])
