"""JAX: an optimiser whose step takes place at the parameter server."""

import operator
import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from idl.errors import InvalidRequestError
from idl.layout import Group, Layout, Tensor
from worker.early_push import EarlyPush
from worker.exchanges.parameter_server import ParameterServer, ParameterViews
from worker.flat_order import BUCKET_MB, FlatArrays, backward_order, bucket_elements
from worker.jax.gradient import ValueAndGrad, squared_norm
from worker.jax.gradient_push import GradientPush
from worker.jax.loader import DataLoader
from worker.jax.rules import Rule
from worker.learning_rates import Rule as LrRule
from worker.learning_rates import factor_by
from worker.optimizer_state import OptimizerState
from worker.tensor_types import check_floating, flat_dtype


def distribute(
    rule: Rule,
    params: Any,
    loader: DataLoader,
    value_and_grad: ValueAndGrad | None = None,
    *,
    statistics: Any = None,
    state: dict[str, Any] | None = None,
    scale_lr: LrRule = "none",
    bucket_cap_mb: float | None = BUCKET_MB,
) -> "Optimizer":
    """Open the job at the parameter server, and return an optimiser that steps there; see `Optimizer`.

    Args:
        rule: As in `Optimizer`, as are the others.
        params: The parameters.
        loader: The loader.
        value_and_grad: What `evenpace.jax.value_and_grad` has returned for these parameters: gradients are
            pushed while it computes others, by the weights that its `loss_fn` may return. None: all are
            pushed by the step.
        statistics: The statistics.
        state: The state to resume from.
        scale_lr: How learning rates follow the size of the whole batch, where that changes: "linear", "sqrt",
            "adascale", "none", or a function from the size and the script's first one to the factor; "auto"
            is "sqrt" for adam and adamw, and "adascale" for sgd.
        bucket_cap_mb: MiB of gradients that are pushed at a time, the same for every worker; None: all are
            pushed by the step, and workers of other frameworks can train the same job, as they can where a
            model is no larger than that.

    Raises:
        InvalidRequestError: An argument is not allowed, `bucket_cap_mb` is not above 0, a service refuses, or
            the session has an optimiser already.
    """
    if not isinstance(rule, Rule):
        what = "is optax's, which cannot be sent there" if hasattr(rule, "update") else f"is {rule!r}"
        raise InvalidRequestError(
            f"the optimiser steps at the parameter server, but this one {what}: use evenpace.jax.sgd, "
            f"adam or adamw, which take the same arguments as optax's"
        )
    if value_and_grad is not None and not isinstance(value_and_grad, ValueAndGrad):
        raise InvalidRequestError(
            f"value_and_grad {value_and_grad!r}: give what evenpace.jax.value_and_grad has returned, or None"
        )
    factor = factor_by(scale_lr, rule.name)
    bucket = bucket_elements(bucket_cap_mb)
    optimizer = Optimizer(rule, params, loader, value_and_grad, statistics, state, bucket)
    loader.session.training.scale_lr_by(factor)
    return optimizer


class Optimizer:
    """An optimiser that pushes gradients, weighted by the batch size, and pulls new parameters.

    Its state (momentum and the like) is at the parameter server. All workers start from the parameters of the
    first worker.

    Args:
        rule: One of `sgd`, `adam`, `adamw` of `worker.jax.rules`.
        params: A pytree of floating-point arrays: Flax's `variables["params"]`, or the `nnx.Param`s that
            `nnx.split` gives.
        value_and_grad: The function that computes gradients, which are pushed while it does; None: by `step`.
        statistics: A pytree of the model's state beside its parameters, such as Flax's `batch_stats`; None
            for none. In each step, it becomes the workers' mean, weighted by their batch sizes.
        state: The state to resume from, as `state_dict` returned it; empty entries may be missing.
        bucket: Elements with which a bucket of gradients is complete.

    Attributes:
        params: The parameters as last pulled, on the devices and of the types of those given. Read them here
            for each batch: they change in iterations without a sample for this worker, too.
        statistics: The statistics, likewise.

    Raises:
        InvalidRequestError: An argument is not allowed, a service refuses, or the session has an optimiser
            already.
    """

    def __init__(
        self,
        rule: Rule,
        params: Any,
        loader: DataLoader,
        value_and_grad: ValueAndGrad | None,
        statistics: Any,
        state: dict[str, Any] | None,
        bucket: int,
    ) -> None:
        self._loader = loader
        self._session = loader.session
        self._server = ParameterServer.of(self._session.exchange)
        self._views = ParameterViews(self._server, self._in)
        self._server.check_unprepared()
        self.params = params
        self.statistics = statistics
        self._rule = rule
        tensors = _tensors((params, statistics))
        check_floating(tensors)
        self._like = [_outline(jnp.asarray(leaf)) for leaf in jax.tree.leaves((params, statistics))]
        self._tree: Any = jax.tree.structure((params, statistics))
        self._trained = len(jax.tree.leaves(params))
        sizes = [leaf.size for leaf in self._like]
        trained, kept = sizes[: self._trained], sizes[self._trained :]
        if not sum(trained):
            raise InvalidRequestError("params has no elements: there is nothing to train")
        places = _places([tensor.name for tensor in tensors[: self._trained]])
        self._order = backward_order([trained], kept, places, self._server.shards, bucket)
        initial = np.empty(self._order.elements, dtype=flat_dtype(tensors))
        self._fill(self._in(initial), (params, statistics))
        device = jax.devices()[0]
        if device.platform != "cpu":
            self._session.device.describe(device.device_kind)
        groups = self._order.groups([rule.options(self._session.join().iteration)])
        if self._session.synchronisation.exact:
            raise InvalidRequestError(
                "the job sums gradients exactly (`evenpace manager --exact`), which evenpace.jax cannot: "
                "start the manager without --exact, or train with evenpace.torch or evenpace.keras"
            )
        layout = Layout(initial.dtype.name, rule.name, groups, tensors, self._order.name)
        before = self._placed(state) if state else None
        self._server.prepare(layout, initial, before, self._take_parameters)
        self._session.start_training()
        self._gradients = self._in(self._server.gradient.values)
        self._push: GradientPush | None = None
        if value_and_grad is not None:
            value_and_grad.weights = self._session.weights
        if value_and_grad is not None and device.platform == "cpu":
            push = EarlyPush(self._session, self._server, self._order, self._present_groups)
            pulled = lambda: self._pulled[: self._trained]  # noqa: E731
            value_and_grad.taker = self._push = GradientPush(push, self._gradients, self._order, pulled)

    def step(self, gradient: Any, statistics: Any = None) -> None:
        """Take a step at the parameter server with all workers' gradients, and pull the new parameters.

        Args:
            gradient: The gradient of the *mean* loss over this worker's batch; a pytree like the parameters.
            statistics: The statistics after this batch, if there are any.

        Raises:
            InvalidRequestError: A pytree has another structure than the one given first, or `params` or
                `statistics` were set to others.
            EvenpaceError: As `Session.finish_iteration` raises.
        """
        leaves = jax.tree.leaves((self.params, self.statistics))
        if len(leaves) != len(self._pulled) or any(map(operator.is_not, leaves, self._pulled)):
            raise InvalidRequestError(
                "optimizer.params or statistics were set, but the parameter server has the parameters: give "
                "those to start from to evenpace.jax.distribute"
            )
        self._fill(self._gradients, (gradient, statistics), self._push)
        self._tell_norms(gradient)
        self._session.finish_iteration(self._present_groups())

    def _tell_norms(self, gradient: Any) -> None:
        """Tell the session the norms of micro-batches, scaled as the script has scaled their mean since."""
        batch = self._loader.batch
        if batch is None or batch.part.assignment is not self._session.assignment or batch.gradient is None:
            return
        factor = 1.0
        if gradient is not batch.gradient:
            before, now = float(squared_norm(batch.gradient)), float(squared_norm(gradient))
            factor = now / before if before else 1.0
        for count, squares, weight in batch.squares:
            self._session.norms.add(batch.part.assignment, count, squares * factor, weight)
        batch.gradient, batch.squares = None, []

    def state_dict(self) -> dict[str, Any]:
        """Return the optimiser's state for a checkpoint, between two iterations: numbers and NumPy arrays."""
        state = self._server.optimizer_state(self._session.assignment)
        slots = {name: self._in(slot) for name, slot in state.slots.items()}
        leaves = range(len(self._like))
        return {
            "steps": state.steps,
            "slots": {
                name: np.concatenate([values[number].reshape(-1) for number in leaves])
                for name, values in slots.items()
            },
        }

    def _placed(self, state: dict[str, Any]) -> OptimizerState:
        """Return the state of `state_dict` in the order of the flat array."""
        slots = {name: np.empty_like(slot) for name, slot in state.get("slots", {}).items()}
        ends = np.cumsum([leaf.size for leaf in self._like])
        for name, slot in slots.items():
            values = self._in(slot)
            for number, part in enumerate(np.split(state["slots"][name], ends[:-1])):
                values[number] = part
        return OptimizerState(int(state["steps"]), slots)

    def _take_parameters(self) -> None:
        # Copies: JAX may go on using the memory, and the next pull overwrites this.
        arrays = [self._views.now[n].astype(leaf.dtype, copy=False) for n, leaf in enumerate(self._like)]
        self._pulled = list(map(jax.device_put, arrays, [leaf.sharding for leaf in self._like]))
        self.params, self.statistics = self._tree.unflatten(self._pulled)

    def _fill(self, values: FlatArrays, tree: Any, push: GradientPush | None = None) -> None:
        """Copy a tree like that of parameters and statistics into a flat array, but what is there already."""
        leaves, structure = jax.tree.flatten(tree)
        shapes, expected = [np.shape(leaf) for leaf in leaves], [leaf.shape for leaf in self._like]
        if structure != self._tree or shapes != expected:
            raise InvalidRequestError(
                f"a pytree of {structure} with shapes {shapes} where parameters and statistics are one of "
                f"{self._tree} with shapes {expected}"
            )
        leaves = jax.device_get(leaves)
        for bucket in self._order.buckets[push.finish(leaves) if push is not None else 0 :]:
            for number in bucket:
                values[number] = leaves[number]

    def _in(self, flat: NDArray[Any]) -> FlatArrays:
        """Return the leaves' values in a flat array."""
        return FlatArrays(flat, self._order, [leaf.shape for leaf in self._like])

    def _present_groups(self) -> tuple[Group, ...] | None:
        """Return the groups of the present assignment's step."""
        assignment = self._session.assignment
        if assignment is None:
            return None
        return self._order.groups([self._rule.options(assignment.iteration)])


def _places(names: Sequence[str]) -> list[int]:
    """Return the place of each parameter in the forward pass, as far as its name says, as of `layer_10`."""

    def key(number: int) -> list[Any]:
        return [int(part) if part.isdecimal() else part for part in re.split("([0-9]+)", names[number])]

    order = sorted(range(len(names)), key=key)
    return sorted(range(len(names)), key=order.__getitem__)


def _outline(array: jax.Array) -> jax.ShapeDtypeStruct:
    """Return an array's shape and type, and its sharding if the user has chosen one."""
    place = array.sharding if array.committed else None
    return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=place)  # type: ignore[no-untyped-call]


def _tensors(tree: Any) -> tuple[Tensor, ...]:
    """Describe the tensors of parameters and statistics."""
    return tuple(
        Tensor(
            jax.tree_util.keystr(tuple(path), simple=True, separator="/"),
            np.shape(leaf),
            jnp.result_type(leaf).name,
        )
        for (_, *path), leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
    )
