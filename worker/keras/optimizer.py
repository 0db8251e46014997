"""Keras on TensorFlow: an optimiser whose step takes place at the parameter server."""

import contextlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from idl.errors import InvalidRequestError
from idl.layout import Group, Layout, Tensor
from worker.exchanges.parameter_server import ParameterServer
from worker.keras.loader import DataLoader
from worker.keras.optimizer_options import describe_keras, slots
from worker.optimizer_state import OptimizerState
from worker.tensor_types import check_floating, flat_dtype

log = logging.getLogger(__name__)


class VariableLink:
    """The link of a Keras optimiser's variables to the parameter server: gradients out, parameters back.

    Args:
        optimizer: An SGD, Adam or AdamW of keras.optimizers.
        loader: The evenpace loader of the training data.
        variables: The variables that the optimiser trains.
        statistics: The variables that the workers average, such as batch normalisation's statistics.

    Attributes:
        failure: The error that an exchange has raised; TensorFlow's graphs pass on its text alone.

    Raises:
        InvalidRequestError: The parameter server lacks this kind of optimiser, one of its options, or
            constraints; there is nothing to train, or a service refuses.
    """

    def __init__(
        self, optimizer: Any, loader: DataLoader, variables: Iterable[Any], statistics: Iterable[Any] = ()
    ) -> None:
        self._optimizer = optimizer
        self._session = loader.session
        self._accumulation = loader.accumulation
        self.failure: Exception | None = None
        self._server = ParameterServer.of(self._session.exchange)
        name, self._options = describe_keras(optimizer)
        trained = list(variables)
        if not trained:
            raise InvalidRequestError("there are no variables to train")
        for variable in trained:
            if getattr(variable, "constraint", None) is not None:
                raise InvalidRequestError(
                    f"{_name(variable)} has a constraint: the parameter server knows none"
                )
        if not optimizer.built:
            optimizer.build(trained)
        optimizer._check_variables_are_known(trained)
        # A group is a run of elements, so the variables without weight decay go together.
        decaying = [v for v in trained if optimizer._use_weight_decay(_native(v))]
        exempt = [v for v in trained if not optimizer._use_weight_decay(_native(v))]
        self._trained, self._statistics = decaying + exempt, list(statistics)
        self._variables = self._trained + self._statistics
        self._sizes = [_size(v) for v in self._variables]
        self._elements = [sum(map(_size, part)) for part in (decaying, exempt, self._statistics)]
        tensors = [Tensor(_name(v), tuple(v.shape), _dtype(v)) for v in self._variables]
        check_floating(tensors)
        self._dtype = flat_dtype(tensors)
        # The optimiser has a count of its own, which may have begun before this job.
        self._earlier = int(optimizer.iterations) - loader.resumed_at
        self._options["lr"] = _number(optimizer.learning_rate)
        state = self._state() if int(optimizer.iterations) else None
        for gpu in tf.config.get_visible_devices("GPU")[:1]:
            details = tf.config.experimental.get_device_details(gpu)
            self._session.device.describe(details.get("device_name"))
        layout = Layout(self._dtype, name, self._groups(self._options), tuple(tensors))
        self._server.prepare(layout, self._flat(self._variables), state)
        self._session.start_training()
        self._copy(self._server.parameters, self._variables)  # later ones are assigned by `_step`
        optimizer.iterations.assign(self._iterations)

    def apply(self, grads: Sequence[Any], trainable_variables: Iterable[Any] | None = None) -> None:
        """Push the gradients and assign the new parameters, in place of `optimizer.apply`.

        It works inside and outside `tf.function`.

        Raises:
            InvalidRequestError: The gradients are not those of all trained variables; single ones may be
                None.
        """
        given = self._optimizer._trainable_variables if trainable_variables is None else trainable_variables
        gradients = dict(zip((_native(v).ref() for v in given), grads, strict=True))
        if gradients.keys() != {_native(v).ref() for v in self._trained} or all(g is None for g in grads):
            raise InvalidRequestError(
                f"{len(grads)} gradients, {sum(g is None for g in grads)} of them None: give one for each of "
                f"the {len(self._trained)} variables that are trained, in one call"
            )
        pushed = [gradients[_native(v).ref()] for v in self._trained]
        pushed = [tf.zeros(v.shape) if g is None else g for g, v in zip(pushed, self._trained, strict=True)]
        scale = self._optimizer.loss_scale_factor or 1.0
        flat = [tf.cast(tf.convert_to_tensor(g), self._dtype) / scale for g in pushed]
        flat += [tf.cast(tf.convert_to_tensor(v), self._dtype) for v in self._statistics]
        flat = tf.concat([tf.reshape(part, [-1]) for part in flat], 0)
        is_last = tf.ensure_shape(tf.numpy_function(self._add, [flat], tf.bool), [])
        tf.cond(is_last, self._step, self._rewind)

    def _step(self) -> None:
        """Push what was added, and assign the new parameters."""
        lr = tf.cast(self._optimizer.learning_rate, tf.float64)
        new, iterations = tf.numpy_function(self._exchange, [lr], [self._dtype, tf.int64])
        # Assigned within the graph, which knows the order of reads and writes then.
        self._assign(self._variables, self._sizes, new)
        self._optimizer.iterations.assign(tf.ensure_shape(iterations, []))

    def _rewind(self) -> None:
        """Assign the statistics as they were before the micro-batch."""
        if self._statistics:
            kept = tf.numpy_function(self._last_statistics, [], self._dtype)
            self._assign(self._statistics, self._sizes[len(self._trained) :], kept)

    def _assign(self, variables: Sequence[Any], sizes: Sequence[int], flat: Any) -> None:
        parts = tf.split(tf.ensure_shape(flat, [sum(sizes)]), sizes)
        for variable, part in zip(variables, parts, strict=True):
            variable.assign(tf.cast(tf.reshape(part, variable.shape), variable.dtype))

    def check_trained(self, variables: Iterable[Any]) -> None:
        """Check that these are the variables that are trained, and warn if their values are lost.

        Raises:
            InvalidRequestError: There are others, or fewer.
        """
        given = {_native(v).ref(): _name(v) for v in variables}
        trained = {_native(v).ref(): _name(v) for v in self._trained}
        differing = given.keys() ^ trained.keys()
        if differing:
            names = ", ".join(sorted((given | trained)[ref] for ref in differing))
            raise InvalidRequestError(
                f"{names}: trainable was changed after evenpace.keras.distribute, when it was fixed what is "
                f"trained; save the model, and go on from there in another job"
            )
        # Rounded to each variable's own type, as what was pulled was.
        current = self._server.parameters[: sum(self._elements[:2])]
        sizes = np.cumsum(self._sizes[: len(self._trained)])[:-1]
        for variable, part in zip(self._trained, np.split(current, sizes), strict=True):
            pulled = tf.cast(part.reshape(variable.shape), _dtype(variable))
            if not np.array_equal(keras.ops.convert_to_numpy(variable), pulled.numpy()):
                log.warning(
                    "%s was changed outside of training, as by model.load_weights: such changes are lost "
                    "with the next step, since the parameter server has the parameters; make them before "
                    "evenpace.keras.distribute",
                    _name(variable),
                    extra=self._session.log_fields(),
                )
                return

    def fetch_state(self) -> None:
        """Copy the optimiser's state from the parameter server into its own variables."""
        state = self._server.optimizer_state(self._session.assignment)
        for name, variables in slots(self._optimizer).items():
            if name in state.slots:
                self._copy(state.slots[name], [variables[self._index(v)] for v in self._trained])

    def _add(self, flat: NDArray[Any]) -> np.bool_:
        """Add gradients and statistics, (elements,), and return whether the slice's are complete."""
        with self._noting_failure():
            return np.bool_(self._accumulation.add(flat))

    def _last_statistics(self) -> NDArray[Any]:
        """Return the statistics as last pulled."""
        return self._server.parameters[sum(self._elements[:2]) :].copy()

    def _exchange(self, lr: np.float64) -> tuple[NDArray[Any], np.int64]:
        """Push the gradients and statistics, and pull the new parameters, (elements,), and iteration."""
        _, options = describe_keras(self._optimizer)
        options["lr"] = float(lr)
        with self._noting_failure():
            self._session.finish_iteration(self._groups(options) if options != self._options else None)
        self._options = options  # not before: a step that is refused sends none
        # A copy: TensorFlow may keep the memory that it is given, and the next pull writes there.
        return self._server.parameters.copy(), np.int64(self._iterations)

    @contextlib.contextmanager
    def _noting_failure(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.failure = error
            raise

    @property
    def _iterations(self) -> int:
        """Return the optimiser's steps so far, those of other workers included."""
        assignment = self._session.assignment
        return int(self._optimizer.iterations) if assignment is None else self._earlier + assignment.iteration

    def _groups(self, options: dict[str, float]) -> tuple[Group, ...]:
        decaying, exempt, statistics = self._elements
        groups = (
            Group(decaying, options),
            Group(exempt, {**options, "weight_decay": 0.0}),
            Group(statistics, {}, statistics=True),
        )
        return tuple(group for group in groups if group.elements)

    def _state(self) -> OptimizerState:
        """Return the optimiser's own state, to start from, with zeros for the statistics."""
        filling = np.zeros(self._elements[2], self._dtype)
        flat = {
            name: np.concatenate([self._flat([variables[self._index(v)] for v in self._trained]), filling])
            for name, variables in slots(self._optimizer).items()
        }
        return OptimizerState(int(self._optimizer.iterations), flat)

    def _index(self, variable: Any) -> int:
        return int(self._optimizer._get_variable_index(variable))

    def _flat(self, variables: Sequence[Any]) -> NDArray[Any]:
        parts = [keras.ops.convert_to_numpy(v).astype(self._dtype).reshape(-1) for v in variables]
        return np.concatenate(parts)

    def _copy(self, flat: NDArray[Any], variables: Sequence[Any]) -> None:
        begin = 0
        for variable in variables:
            end = begin + _size(variable)
            part = flat[begin:end].reshape(variable.shape).copy()  # TensorFlow may keep this memory
            variable.assign(tf.cast(part, variable.dtype))
            begin = end


def _native(variable: Any) -> Any:
    return variable.value if isinstance(variable, keras.Variable) else variable


def _name(variable: Any) -> str:
    return str(variable.path if isinstance(variable, keras.Variable) else variable.name)


def _dtype(variable: Any) -> str:
    return str(tf.as_dtype(variable.dtype).name)


def _size(variable: Any) -> int:
    return int(np.prod(variable.shape))


def _number(learning_rate: Any) -> float:
    return float(keras.ops.convert_to_numpy(learning_rate))
