"""Keras on TensorFlow: an optimiser whose step takes place at the parameter server."""

import contextlib
import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from idl.errors import InvalidRequestError
from idl.layout import Group, Layout, Tensor
from worker.exchanges.parameter_server import ParameterServer, ParameterViews
from worker.flat_order import FlatArrays, backward_order
from worker.keras.loader import DataLoader
from worker.keras.optimizer_options import describe_keras, slots
from worker.optimizer_state import OptimizerState
from worker.tensor_types import check_floating, flat_dtype
from worker.untrained import Bytes, Fixed, Untrained

_VARIABLES = 4  # that are compared with what was pulled for each batch
_ELEMENTS = 64  # of each

_Sample = tuple[int, int, int, NDArray[Any]]
"""A variable's number, the first of its elements, their stride, and the elements as they were pulled."""


class VariableLink:
    """The link of a Keras optimiser's variables to the parameter server: gradients out, parameters back.

    Gradients are pushed in buckets. Each is pushed by an operation of its own, whose inputs are the bucket's
    gradients: in a `tf.function`, TensorFlow runs it once these are computed, while the backward pass goes
    on. What clips them comes between, so that they are final. The last bucket goes with the step: until then
    no shard has all of its part, and the push can be given up.

    Args:
        optimizer: An SGD, Adam or AdamW of keras.optimizers.
        statistics: The variables that the workers average, such as batch normalisation's statistics.
        weights: The model's, of which this worker takes the others from the first one.
        bucket: Elements with which a bucket of gradients is complete.

    Raises:
        InvalidRequestError: The parameter server lacks this kind of optimiser, one of its options, or
            constraints; there is nothing to train, or a service refuses.
    """

    def __init__(
        self,
        optimizer: Any,
        loader: DataLoader,
        variables: Iterable[Any],
        statistics: Sequence[Any],
        weights: Iterable[Any],
        bucket: int,
    ) -> None:
        self._optimizer = optimizer
        self._session = loader.session
        self._accumulation = loader.accumulation
        # The error that an exchange has raised; TensorFlow's graphs pass on its text alone.
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
        # Numbered by group: where there is one bucket, a group is then one run of elements.
        exempt = [not optimizer._use_weight_decay(_native(v)) for v in trained]
        places = sorted(range(len(trained)), key=lambda place: exempt[place])
        self._trained, self._statistics = [trained[place] for place in places], list(statistics)
        self._variables = self._trained + self._statistics
        self._shapes = [tuple(v.shape) for v in self._variables]
        sizes = [_size(v) for v in self._variables]
        decaying = len(trained) - sum(exempt)
        groups = [sizes[:decaying], sizes[decaying : len(trained)]]
        self._order = backward_order(groups, sizes[len(trained) :], places, self._server.shards, bucket)
        tensors = [
            Tensor(_name(v), shape, _dtype(v)) for v, shape in zip(self._variables, self._shapes, strict=True)
        ]
        check_floating(tensors)
        self._dtype = flat_dtype(tensors)
        # The optimiser has a count of its own, which may have begun before this job.
        self._earlier = int(optimizer.iterations) - loader.resumed_at
        self._options["lr"] = _number(optimizer.learning_rate)
        state = self._state() if int(optimizer.iterations) else None
        for gpu in tf.config.get_visible_devices("GPU")[:1]:
            details = tf.config.experimental.get_device_details(gpu)
            self._session.device.describe(details.get("device_name"))
        layout = Layout(self._dtype, name, self._groups(self._options), tuple(tensors), self._order.name)
        self._has_warned = False
        self._turns = itertools.cycle(range(len(self._trained)))
        self._turn, self._noted = 0, list[_Sample]()
        self._session.before_batch.append(lambda: self._warn_of_changes(self._noted))
        exchanged = {_native(v).ref() for v in self._variables}
        fixed = [_fixed(v) for v in weights if _native(v).ref() not in exchanged]
        initial = self._flat(self._variables)
        self._server.prepare(layout, initial, state, untrained=Untrained("keras", fixed))
        self._session.start_training()
        self._pulled = ParameterViews(self._server, lambda flat: FlatArrays(flat, self._order, self._shapes))
        self._copy(self._pulled.now, self._variables)  # later ones are assigned by `_step`
        self._flat_gradient = loader.accumulation.make_array()
        self._gradient = FlatArrays(self._flat_gradient, self._order, self._shapes)
        self._next_options = self._options  # of the step whose gradient is being computed
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
        values = [tf.cast(tf.convert_to_tensor(g), self._dtype) / scale for g in pushed]
        values += [tf.cast(tf.convert_to_tensor(v), self._dtype) for v in self._statistics]
        lr = tf.cast(self._optimizer.learning_rate, tf.float64)
        is_last = None
        for bucket, numbers in enumerate(self._order.buckets):
            # The operations of one function that have effects run in their order in the code.
            fill = functools.partial(self._fill, bucket)
            is_last = tf.numpy_function(fill, [lr, *(values[number] for number in numbers)], tf.bool)
        tf.cond(tf.ensure_shape(is_last, []), self._step, self._rewind)

    def _step(self) -> None:
        """Push the rest of what was added, and assign the new parameters."""
        types = [*[self._dtype] * len(self._variables), tf.int64]
        *new, iterations = tf.numpy_function(self._exchange, [], types)
        # Assigned within the graph, which knows the order of reads and writes then.
        self._assign(self._variables, new)
        self._optimizer.iterations.assign(tf.ensure_shape(iterations, []))

    def _rewind(self) -> None:
        """Assign the statistics as they were before the micro-batch."""
        if self._statistics:
            kept = tf.numpy_function(self._last_statistics, [], [self._dtype] * len(self._statistics))
            self._assign(self._statistics, tf.nest.flatten(kept))

    def _assign(self, variables: Sequence[Any], values: Sequence[Any]) -> None:
        for variable, value in zip(variables, values, strict=True):
            variable.assign(tf.cast(tf.ensure_shape(value, variable.shape), variable.dtype))

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
        self._warn_of_changes(
            (number, 0, 1, self._pulled.now[number]) for number in range(len(self._trained))
        )

    def _note(self, pulled: Sequence[NDArray[Any]]) -> None:
        """Note some elements of some variables as they are pulled, in turn."""
        self._turn += 1
        self._noted = []
        for number in itertools.islice(self._turns, min(_VARIABLES, len(self._trained))):
            stride = -(-_size(self._trained[number]) // _ELEMENTS) or 1
            # Turns are spread out by a number that has no divisor in common with most strides.
            begin = self._turn * 7919 % stride
            self._noted.append((number, begin, stride, pulled[number].reshape(-1)[begin::stride].copy()))

    def _warn_of_changes(self, pulled: Iterable[_Sample]) -> None:
        """Warn, once, if variables have other values than those that were pulled."""
        for number, begin, stride, values in pulled if not self._has_warned else ():
            elements = tf.reshape(_native(self._trained[number]), [-1])
            if "CPU" in elements.device:
                elements = np.asarray(elements)  # in the same memory, where a slice takes less time
            own = np.asarray(elements[begin::stride])
            # Rounded to the variable's own type as what was assigned was, to half precision in two steps.
            assigned = values.astype(own.dtype) if own.itemsize >= 4 else tf.cast(values, own.dtype).numpy()
            if own.tobytes() != assigned.tobytes():
                self._has_warned = True
                self._session.log.of(__name__).warning(
                    "%s was changed outside of training, as by model.load_weights or a callback: such "
                    "changes are lost with the next step, since the parameter server has the parameters; "
                    "make them before evenpace.keras.distribute, or a part of the model's layers",
                    _name(self._trained[number]),
                )
                return

    def fetch_state(self) -> None:
        """Copy the optimiser's state from the parameter server into its own variables."""
        state = self._server.optimizer_state(self._session.assignment)
        for name, variables in slots(self._optimizer).items():
            if name in state.slots:
                values = FlatArrays(state.slots[name], self._order, self._shapes)
                self._copy(values, [variables[self._index(v)] for v in self._trained])

    def _fill(self, bucket: int, lr: np.float64, *values: NDArray[Any]) -> np.bool_:
        """Add a bucket's gradients and statistics, and push them, but for the last bucket's.

        Args:
            bucket: The bucket's number; each is called for in its turn.
            lr: The learning rate of the step.
            values: The values of each of the bucket's tensors, of its shape.

        Returns:
            Whether the slice's gradient is complete.
        """
        with self._noting_failure():
            if bucket == 0:
                _, options = describe_keras(self._optimizer)
                self._next_options = {**options, "lr": float(lr)}
            for number, value in zip(self._order.buckets[bucket], values, strict=True):
                self._gradient[number] = value
            if bucket == len(self._order.buckets) - 1:
                return np.bool_(self._accumulation.add(self._flat_gradient))
            if bucket == 0:
                self._begin_push()
            self._server.advance_push(self._order.ends[bucket])
            return np.bool_(False)

    def _begin_push(self) -> None:
        """Begin to push the gradient, where it is not to be pushed by the step as a whole."""
        session, part = self._session, self._session.assignment
        at_once = session.is_begun and session.training.micro_batch is None
        if part is not None and at_once and self._server.may_begin(part):
            self._server.begin_push(part, self._changed_groups(), session.training.lr_scale)

    def _last_statistics(self) -> list[NDArray[Any]]:
        """Return the statistics as last pulled."""
        return [self._pulled.now[number] for number in range(len(self._trained), len(self._variables))]

    def _exchange(self) -> list[Any]:
        """Push the rest of the gradients and statistics; return the new parameters, and the iteration."""
        with self._noting_failure():
            self._session.finish_iteration(self._changed_groups())
        self._options = self._next_options  # not before: a step that is refused sends none
        # Copies: TensorFlow may keep the memory that it is given, and the next pull writes where these lay.
        pulled = [self._pulled.now[number] for number in range(len(self._variables))]
        self._note(pulled)
        return [*pulled, np.int64(self._iterations)]

    def note_failure(self, error: Exception) -> None:
        """Note an error that TensorFlow's graphs pass on as a text alone."""
        self.failure = error

    @contextlib.contextmanager
    def _noting_failure(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.note_failure(error)
            raise

    @property
    def _iterations(self) -> int:
        """Return the optimiser's steps so far, those of other workers included."""
        assignment = self._session.assignment
        return int(self._optimizer.iterations) if assignment is None else self._earlier + assignment.iteration

    def _changed_groups(self) -> tuple[Group, ...] | None:
        return self._groups(self._next_options) if self._next_options != self._options else None

    def _groups(self, options: dict[str, float]) -> tuple[Group, ...]:
        """Return the runs of elements with weight decay (0), without (1), and of the statistics."""
        return self._order.groups([options, {**options, "weight_decay": 0.0}])

    def _state(self) -> OptimizerState:
        """Return the optimiser's own state, to start from, with zeros for the statistics."""
        flat = {
            name: self._flat([variables[self._index(v)] for v in self._trained])
            for name, variables in slots(self._optimizer).items()
        }
        return OptimizerState(int(self._optimizer.iterations), flat)

    def _index(self, variable: Any) -> int:
        return int(self._optimizer._get_variable_index(variable))

    def _flat(self, variables: Sequence[Any]) -> NDArray[Any]:
        """Return variables' values in the flat order, (elements,), with zeros for those that come after."""
        flat = np.zeros(self._order.elements, self._dtype)
        values = FlatArrays(flat, self._order, self._shapes)
        for number, variable in enumerate(variables):
            values[number] = keras.ops.convert_to_numpy(variable)
        return flat

    def _copy(self, values: FlatArrays, variables: Sequence[Any]) -> None:
        for number, variable in enumerate(variables):
            variable.assign(tf.cast(values[number], variable.dtype))


def _fixed(variable: Any) -> Fixed:
    def read() -> Bytes:
        return np.frombuffer(keras.ops.convert_to_numpy(variable).tobytes(), np.uint8)

    def write(given: Bytes) -> None:
        dtype = _native(variable).dtype.as_numpy_dtype
        variable.assign(np.frombuffer(given.tobytes(), dtype).reshape(variable.shape))

    return Fixed(_name(variable), f"shape {tuple(variable.shape)}, {_dtype(variable)}", read, write)


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
