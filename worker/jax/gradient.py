"""JAX: the mean gradient over a slice of any size, in pieces of one shape, or in its micro-batches.

`jax.jit` compiles again for each shape, and batch sizes change. Padding each slice to the largest size would
make the time independent of the batch size, so that nothing could be balanced. This module knows no session
and no wire.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import nullcontext
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
    from worker.weights import Weights

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
            takes a key, `rng=`, too. It is compiled here: do not wrap it in `jax.jit`. In a job whose loader
            has `weight=`, it returns in place of losses a pair of losses, (n, ...), such as those of tokens,
            and their weights, booleans or numbers from 0 on, of that shape, or of 1 in some dimensions: the
            mean is sum(weights * losses) / sum(weights), and 0 where nothing counts. Unless the job has
            micro-batches, `evenpace.jax.distribute` must be given the function that is returned here.
        micro_batch_size: Samples in a piece, at least 1; to be left out in a job with micro-batches.
        has_aux: Whether `loss_fn` returns such a pair.
        rng: A key of `jax.random`, the same on all workers, in a job with micro-batches: `loss_fn` gets
            `fold_in(fold_in(rng, epoch), position)` for the micro-batch at a position of the epoch.

    Returns:
        A function of the same arguments, which returns `(loss, gradient)`, or `((loss, aux), gradient)`: the
        means over the batch's samples, or by their weights. `batch` is what the loader yields, or a pytree of
        NumPy arrays, (n, ...) each. Half-precision gradients are summed, and returned, in float32. `aux` is
        the mean over the pieces, weighted by their samples; a piece's own is made from its padding as well.

    Raises:
        InvalidRequestError: The size is not allowed; or, when it is called, the loader has another, the
            losses are not one for each sample, the batch has no samples, there are weights where the loader
            has none, or the loader has and there are none, or others.
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
        weights: What the gradients of a job without micro-batches are means over; None outside of a job.

    Raises:
        InvalidRequestError: The size is not allowed.
    """

    def __init__(
        self, loss_fn: Callable[..., Any], micro_batch_size: int | None, has_aux: bool, rng: Any
    ) -> None:
        if micro_batch_size is not None and micro_batch_size < 1:
            raise InvalidRequestError(f"micro_batch_size {micro_batch_size}: must be at least 1")
        self.taker: GradientPush | None = None
        self.weights: Weights | None = None
        self._micro_batch_size = micro_batch_size
        self._has_aux = has_aux
        self._rng = rng

        def losses_of(
            params: Any, piece: Any, count: Any, place: Any, rest: Any, has_weights: bool
        ) -> tuple[Any, Any, Any]:
            """Return a piece's losses, times weights if there are any; these, 0 for padding; and its aux."""
            size = _samples(piece)
            key = (
                {}
                if rng is None
                else {"rng": jax.random.fold_in(jax.random.fold_in(rng, place[0]), place[1])}
            )
            _check_takes(loss_fn, params, piece, *rest, **key)
            result = loss_fn(params, piece, *rest, **key)
            losses, aux = result if has_aux else (result, None)
            if has_weights:
                return *_weighted(losses, size, count), aux
            if isinstance(losses, tuple):
                raise InvalidRequestError(
                    "loss_fn gave losses with weights, but they are averaged over samples: make the loader "
                    'with weight="loss" on all workers, and give distribute this function'
                )
            if jnp.shape(losses) != (size,):
                raise InvalidRequestError(
                    f"loss_fn gave losses of shape {jnp.shape(losses)} for {size} samples: it must give one "
                    f"for each sample, not their mean"
                )
            # Not a product with zeros, which would keep a NaN.
            return jnp.where(jnp.arange(size) < count, _wide(losses), 0), None, aux

        def part(
            params: Any, piece: Any, count: Any, total: Any, place: Any, mass: Any, *rest: Any
        ) -> tuple[Any, Any]:
            """Return a piece's part of a loss, and of its aux.

            Args:
                count: Samples of the piece, without its padding.
                total: Samples of the batch.
                mass: The weights of the piece, and of all that the loss is a mean over, (2,); None: samples.
            """
            kept, _, aux = losses_of(params, piece, count, place, rest, mass is not None)
            whole = total if mass is None else mass[1].astype(kept.dtype)
            return kept.sum() / whole, jax.tree.map(lambda leaf: _wide(leaf) * count / total, aux)

        def piecewise(
            params: Any, piece: Any, count: Any, total: Any, place: Any, mass: Any, *rest: Any
        ) -> Any:
            arguments = (params, piece, count, total, place, mass, *rest)
            result, gradient = jax.tree.map(_wide, jax.value_and_grad(part, has_aux=True)(*arguments))
            if mass is not None:  # without weight, it may be anything
                gradient = jax.tree.map(lambda leaf: jnp.where(mass[0] > 0, leaf, 0), gradient)
            return result, gradient

        def weigh(params: Any, piece: Any, count: Any, place: Any, *rest: Any) -> Any:
            return losses_of(params, piece, count, place, rest, True)[1].sum()

        def scale(sums: Any, factor: Any) -> Any:
            """Scale the sums of losses and gradients, but not those of aux, which are of samples."""
            (loss, aux), gradient = sums
            loss, gradient = jax.tree.map(lambda leaf: leaf * factor.astype(leaf.dtype), (loss, gradient))
            return (loss, aux), gradient

        def zeros(*arguments: Any) -> Any:
            return jax.tree.map(jnp.zeros_like, jax.eval_shape(piecewise, *arguments))

        def add(sums: Any, *arguments: Any) -> Any:
            return jax.tree.map(jnp.add, sums, piecewise(*arguments))

        def add_measured(sums: Any, *arguments: Any) -> Any:
            result, gradient = piecewise(*arguments)
            return *jax.tree.map(jnp.add, sums, (result, gradient)), squared_norm(gradient)

        self._zeros = jax.jit(zeros)
        self._weigh = jax.jit(weigh)
        self._scale = jax.jit(scale, donate_argnums=0)
        # By whether the norms of pieces' gradients are measured.
        self._add = {False: jax.jit(add, donate_argnums=0), True: jax.jit(add_measured, donate_argnums=0)}
        self._add_last = {False: Staged(add, _gradient_of), True: Staged(add_measured, _gradient_of)}

    def __call__(self, params: Any, batch: Any, *rest: Any) -> Any:
        """Return value and gradient, as `value_and_grad` says."""
        weights = batch.weights if isinstance(batch, MeasuredBatch) else self.weights
        given = weights if weights is not None and weights.are_given else None
        pieces, number = self._pieces(batch, weights)
        measured = batch if isinstance(batch, MeasuredBatch) and batch.measures else None
        measures = measured is not None
        taker: GradientPush | None = None
        sums, squares = None, []
        whole, masses = 0.0, list[tuple[float, float]]()  # the weight so far; and of each piece, with that
        for left, (piece, count, total, place) in zip(reversed(range(number)), pieces, strict=True):
            mass = None
            if given is not None:
                own = float(self._weigh(params, piece, count, place, *rest))
                weighed, whole = whole, whole + own
                if isinstance(batch, SlicedBatch):
                    given.note(own, "loss_fn")
                elif not left:
                    given.note(whole, "loss_fn")
                if sums is not None:
                    sums = self._scale(sums, np.float64(weighed / (whole or 1.0)))
                masses.append((own, whole or 1.0))
                mass = np.array(masses[-1])
            arguments = (piece, count, total, place, mass)
            before = self._zeros(params, *arguments, *rest) if sums is None else sums
            if not left and self.taker is not None and self.taker.begin(params):
                taker = self.taker
                found = self._add_last[measures](taker.stages, before, params, *arguments, *rest)
            else:
                found = self._add[measures](before, params, *arguments, *rest)
            sums, of_piece = found[:2], found[2:]
            squares.extend(of_piece)
        assert sums is not None
        (loss, aux), gradient = sums
        if measured is not None:
            measured.take(gradient, squares, masses or None)
        if taker is not None:
            taker.take(gradient)
        return ((loss, aux), gradient) if self._has_aux else (loss, gradient)

    def _pieces(self, batch: Any, weights: "Weights | None") -> tuple[Iterator[tuple[Any, ...]], int]:
        """Return a batch's pieces, each with its real samples, the batch's, its place; and their number."""
        size = self._micro_batch_size
        if isinstance(batch, SlicedBatch):
            if size is not None:
                raise InvalidRequestError(
                    f"micro_batch_size {size}: leave it out, since the loader has micro_batch="
                )
            return _micro_batches(batch, weights), len(batch)
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


def _micro_batches(batch: SlicedBatch, weights: "Weights | None") -> Iterator[tuple[Any, ...]]:
    """Yield a slice's micro-batches, with their samples, the slice's, and their epoch and position there."""
    total = np.int32(len(batch.part.indices))
    if weights is not None:
        weights.begin(batch.part.assignment)  # the slice may have been gone through before
    for part in batch.micro_batches():
        place = np.array([part.epoch, part.position], np.uint64).astype(np.uint32)
        with weights.micro_batch(part.count) if weights is not None else nullcontext():
            yield batch.load(part), np.int32(len(part.indices)), total, place


def _weighted(result: Any, size: int, count: Any) -> tuple[Any, Any]:
    """Return losses times their weights, and the weights, of which those beyond `count` samples are 0."""
    if not isinstance(result, tuple) or len(result) != 2:
        raise InvalidRequestError(
            "loss_fn gave no weights, but the loader has weight=: return (losses, weights), for their mean"
        )
    losses, weights = _wide(result[0]), _wide(jax.lax.stop_gradient(result[1]))
    fits = [own in (1, other) for own, other in zip(weights.shape, losses.shape, strict=False)]
    if losses.shape[:1] != (size,) or weights.ndim != losses.ndim or not all(fits):
        raise InvalidRequestError(
            f"loss_fn gave losses of shape {losses.shape} and weights of {weights.shape} for {size} samples: "
            f"it must give a row of losses for each sample, and weights of that shape, or of 1 in a dimension"
        )
    is_real = jnp.arange(size).reshape(-1, *[1] * (losses.ndim - 1)) < count
    weights = jnp.where(is_real, jnp.broadcast_to(weights, losses.shape), 0)
    # What does not count may be infinite, or not a number.
    return jnp.where(weights != 0, losses, 0) * weights, weights


def _wide(array: Any) -> Any:
    """Convert an array to at least float32, as sums over many pieces need it."""
    return jnp.asarray(array, jnp.promote_types(jnp.result_type(array), jnp.float32))


def _samples(batch: Any) -> int:
    shapes = [array.shape for array in jax.tree.leaves(batch)]
    rows = {shape[:1] for shape in shapes}
    if len(rows) != 1 or rows <= {(), (0,)}:
        raise InvalidRequestError(f"a batch of shapes {shapes}: all must have as many samples, at least 1")
    return int(rows.pop()[0])
