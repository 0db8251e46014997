"""Keras on TensorFlow: optimisers in custom training loops, and models that are trained by `fit`."""

import functools
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import keras
import tensorflow as tf
from keras.src.trainers.data_adapters.data_adapter_utils import class_weight_to_sample_weights  # private

from idl.errors import InvalidRequestError
from worker.exchanges.parameter_server import ParameterServer
from worker.flat_order import BUCKET_MB, bucket_elements
from worker.keras.loader import DataLoader
from worker.keras.losses import LossWeights
from worker.keras.micro_batches import SlicedBatch, micro_batches
from worker.keras.optimizer import VariableLink
from worker.keras.randomness import ModelSeeds
from worker.learning_rates import Rule, factor_by

Trained = TypeVar("Trained")

# Options of `fit` for making batches from arrays, which do not apply to an evenpace loader.
_OF_ARRAYS = ("y", "batch_size", "sample_weight", "steps_per_epoch")


def distribute(
    target: Trained,
    loader: DataLoader,
    variables: Iterable[Any] | None = None,
    model: keras.Model | None = None,
    scale_lr: Rule = "none",
    *,
    bucket_cap_mb: float | None = BUCKET_MB,
) -> Trained:
    """Let each step push the gradient, weighted by the batch size, and pull new parameters.

    Given a compiled model, `model.fit(loader)` trains as one worker of the job: each of Keras's epochs is one
    of the job's, from the job's current one on. Given an optimiser, its `apply` and `apply_gradients` do,
    inside and outside `tf.function`. Schedules and callbacks work on the optimiser as before, and their
    changes go to the parameter server with the next step; they must be the same on every worker. Its state
    (momentum and the like) is at the parameter server, and is fetched when the optimiser or its model is
    saved. All workers start from the parameters, and the state, of the first worker.

    The gradient is expected to be of the *mean* loss over the batch, as Keras's losses give it, plus
    regularisation; `loss_weights`, sample weights and the `class_weight` of `fit` change nothing in that. A
    loss whose output has a mask, or with the reduction "mean_with_sample_weight", is a mean over something
    else than samples: make the loader with `weight=`. Metrics and the training loss are of this worker's
    own samples. Batch normalisation's moving statistics, of the model that is given, are averaged over the
    workers by their batch sizes. In a job with micro-batches, `fit` goes through them within a step, and the
    layers of the model that is given draw random numbers of the micro-batch's own.

    Args:
        target: A compiled `keras.Model`, or an SGD, Adam or AdamW of `keras.optimizers`.
        loader: The evenpace loader of the training data.
        variables: The variables that an optimiser trains; by default those it was built with, or else the
            model's.
        model: The model whose statistics are averaged, and whose layers are seeded, where the target is an
            optimiser.
        scale_lr: How learning rates follow the size of the whole batch, where that changes: "linear", "sqrt",
            "adascale", "none", or a function from the size and the script's first one to the factor; "auto"
            is "sqrt" for Adam and AdamW, and "adascale" for SGD. The optimiser keeps the script's own rates.
        bucket_cap_mb: MiB of gradients that are pushed at a time, while the backward pass of a `tf.function`
            computes the next ones, the same for every worker; None: all are pushed at once, and workers of
            other frameworks can train the same job, as they can where a model is no larger than that.

    Returns:
        The same model or optimiser.

    Raises:
        InvalidRequestError: The parameter server lacks this kind of optimiser or one of its options, the
            model is compiled with steps_per_execution, there is nothing to train, `bucket_cap_mb` is not
            above 0, a service refuses, or it is not the session's first call.
    """
    ParameterServer.of(loader.session.exchange).check_unprepared()
    factor = factor_by(scale_lr, type(getattr(target, "optimizer", target)).__name__)
    bucket = bucket_elements(bucket_cap_mb)
    if isinstance(target, keras.Model):
        _distribute_model(target, loader, bucket)
    else:
        if variables is None and target.built:  # type: ignore[attr-defined]
            variables = target._trainable_variables  # type: ignore[attr-defined]
        elif variables is None and model is not None:
            variables = model.trainable_variables
        elif variables is None:
            raise InvalidRequestError(
                "the optimiser does not know its variables yet: give variables=model.trainable_variables"
            )
        _link(target, loader, variables, model, bucket)
    loader.session.training.scale_lr_by(factor)
    return target


def _link(
    optimizer: Any, loader: DataLoader, variables: Iterable[Any], model: keras.Model | None, bucket: int
) -> VariableLink:
    statistics = _statistics(model) if model is not None else ()
    weights = model.weights if model is not None else ()
    link = VariableLink(optimizer, loader, variables, statistics, weights, bucket)
    optimizer.apply = link.apply
    if model is not None:
        for layer in model._flatten_layers():
            if isinstance(layer, keras.layers.Normalization):
                layer.finalize_state()  # by the mean and variance that may have come from the first worker
        loader.accumulation.model_seeds = ModelSeeds(model)

    def save_own_variables(optimizer: Any, store: Any) -> None:
        if loader.session.assignment is None:
            loader.session.log.of(__name__).warning(
                "saved without the optimiser's state: this worker is no longer in the job"
            )
        else:
            link.fetch_state()
        type(optimizer).save_own_variables(optimizer, store)

    optimizer.save_own_variables = types.MethodType(save_own_variables, optimizer)
    return link


def _distribute_model(model: Any, loader: DataLoader, bucket: int) -> None:
    if not model.compiled or model.optimizer is None:
        raise InvalidRequestError("the model has no optimiser yet: call model.compile first")
    _build(model, loader)
    link = _link(model.optimizer, loader, model.trainable_variables, model, bucket)
    losses = LossWeights(loader.session, link.note_failure)
    model.train_function = _train_function(model, link, loader, losses)
    model.fit = _fit(model, link, loader, losses)
    for name in ("evaluate", "predict"):
        setattr(model, name, _without_loader(name, getattr(model, name), loader))


def _without_loader(name: str, method: Callable[..., Any], loader: DataLoader) -> Callable[..., Any]:
    """Wrap a method of a model so that it refuses the job's loader, whose batches are to be trained on."""

    @functools.wraps(method)
    def on_other_data(x: Any = None, *arguments: Any, **options: Any) -> Any:
        if x is loader:
            raise InvalidRequestError(
                f"model.{name} of an evenpace loader: it gives the batches of the job's training, of which "
                f"this worker has a part; give model.{name} arrays or a data set of your own"
            )
        return method(x, *arguments, **options)

    return on_other_data


def _build(model: Any, loader: DataLoader) -> None:
    """Build a compiled model, for steps of the job."""
    if model.steps_per_execution != 1:
        raise InvalidRequestError(
            f"steps_per_execution={model.steps_per_execution}: each step must be one of the job"
        )
    model._symbolic_build(data_batch=loader.first())  # with its metrics, which would take another trace later
    model.jit_compile = False  # XLA would compile for each batch size, and cannot ask a parameter server


def _train_function(
    model: Any,
    link: VariableLink,
    loader: DataLoader,
    losses: LossWeights,
    class_weight: dict[int, float] | None = None,
) -> Callable[[Iterator[Any]], Any]:
    """Return the function that `fit` calls for each step of an epoch.

    Keras takes as many steps in an epoch as it has batches when it begins (`_Callbacks`). Where this worker
    has fewer parts, it has nothing to do in the epoch's last steps. Where there are more batches, since they
    have become smaller within the epoch, the last step takes all that are left. Further parts of the same
    batch, and repeated batches, belong to the step before them.
    """
    step, spec = losses.within(model, model.train_step), loader.spec
    if class_weight is not None:
        spec = (*spec, tf.TensorSpec([None], keras.config.floatx()))
    if not model.run_eagerly:
        # Keras's own function would be traced again for each batch size.
        step = tf.function(step, input_signature=[spec], autograph=False)
    if class_weight is not None:
        step = _with_class_weights(step, class_weight)
    logs: Any = {}
    reached = -1  # the furthest iteration that was begun
    epoch: Iterator[Any] | None = None
    step_of_epoch = 0

    def train(iterator: Iterator[Any]) -> Any:
        nonlocal logs, reached, epoch, step_of_epoch
        session = loader.session
        step_of_epoch = step_of_epoch + 1 if iterator is epoch else 1
        epoch = iterator
        reached = max(reached, session.assignment.iteration if session.assignment else -1)
        for batch in map(_without_none, iterator):
            try:
                logs = _take_step(model, step, batch, logs)
            except tf.errors.OpError as error:
                raise (link.failure or error) from None
            is_further = session.assignment is None or session.assignment.iteration > reached
            if is_further and step_of_epoch != loader.steps:
                break
        if session.released is not None:
            model.stop_training = True
        return logs

    return train


def _with_class_weights(step: Callable[[Any], Any], class_weight: dict[int, float]) -> Callable[[Any], Any]:
    """Return a step of inputs and targets in which each sample has the weight of its class, as in Keras."""

    def weighted(batch: Any) -> Any:
        x, y = batch
        return step((x, y, tf.convert_to_tensor(class_weight_to_sample_weights(y, class_weight))))

    return weighted


def _check_targets(loader: DataLoader) -> None:
    """Check that batches are inputs and targets, and have no sample weights (InvalidRequestError: not so)."""
    batch = loader.spec
    if not isinstance(batch, tuple) or len(batch) != 2 or keras.tree.is_nested(batch[1]):
        raise InvalidRequestError(
            "class_weight: the loader must give (x, y), with one array of classes as y, and no sample weights"
        )


def _without_none(batch: Any) -> Any:
    """Return a batch as the loader gives it, without the weights of None that `train_on_batch` adds."""
    is_longer = isinstance(batch, tuple) and batch[-1] is None
    return keras.utils.pack_x_y_sample_weight(*batch) if is_longer else batch


def _take_step(model: Any, step: Callable[[Any], Any], batch: Any, logs: Any) -> Any:
    """Take the step of a batch, over its micro-batches if the job has them, and return the logs after it.

    Keras's metrics, the training loss among them, are means over the epoch's samples so far: the last
    micro-batch's logs have all. A batch that this worker has no part in changes none.

    Args:
        step: The model's own step.
        batch: What the loader yields.
    """
    if not isinstance(batch, SlicedBatch):
        return step(batch)
    metrics = () if batch.part.assignment.count else model.metrics_variables
    kept = [keras.ops.convert_to_numpy(metric) for metric in metrics]
    new = [step(part) for part in micro_batches(batch)][-1]
    for metric, value in zip(metrics, kept, strict=True):
        metric.assign(value)
    return new if batch.part.assignment.count else logs or new


class _Callbacks(keras.callbacks.CallbackList):  # type: ignore[misc]  # Keras has no types
    """The callbacks of a `fit`, which tell Keras and each other an epoch's number of batches as it begins.

    Keras itself reads that number once, when `fit` begins.

    Args:
        verbose: Of `fit`.
        epochs: Of `fit`.
    """

    def __init__(self, model: Any, loader: DataLoader, callbacks: Any, verbose: Any, epochs: int) -> None:
        self._loader = loader
        self._iterators: list[Any] = []  # Keras's, which counts an epoch's steps
        super().__init__(
            callbacks,
            add_history=True,
            add_progbar=verbose != 0,
            model=model,
            verbose=verbose,
            epochs=epochs,
            steps=loader.num_batches,
        )

    def note_iterator(self, iterator: Any = None, data_batch: Any = None) -> None:
        """Note the iterator that counts steps; `fit` calls this as the model's `_maybe_symbolic_build`.

        The model is built already. Iterators over validation data come here, too.
        """
        if iterator is not None and iterator.data_adapter is self._loader:
            self._iterators.append(iterator)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Set the number of the epoch's steps, and then tell the callbacks that it begins."""
        self._loader.steps = self._loader.num_batches
        for iterator in self._iterators:
            iterator._num_batches = self._loader.steps
        self.set_params({**self.params, "steps": self._loader.steps})
        super().on_epoch_begin(epoch, logs)


def _fit(model: Any, link: VariableLink, loader: DataLoader, losses: LossWeights) -> Callable[..., Any]:
    """Wrap `fit` so that it accepts an evenpace loader only, and begins with the job's current epoch."""
    fit, optimizer = model.fit, model.optimizer
    weighted_by: dict[int, float] | None = None  # the class weights of the model's train function

    def fit_in_job(
        x: Any = None, *arguments: Any, class_weight: dict[int, float] | None = None, **options: Any
    ) -> Any:
        nonlocal weighted_by
        if options.get("validation_split"):
            raise InvalidRequestError(
                f"fit with validation_split={options['validation_split']}: all of the loader's samples are "
                f"trained on; keep some out of it, and give them as validation_data=(x, y)"
            )
        given = [name for name in _OF_ARRAYS if options.get(name) is not None]
        if x is not loader or arguments or given:
            raise InvalidRequestError(
                f"fit of {type(x).__name__} with {', '.join(given) or 'no options'}: after distribute it is "
                f"fit(loader), which makes the batches; weights go into DataLoader(x, y, sample_weight)"
            )
        if model.optimizer is not optimizer:
            raise InvalidRequestError(
                "the model was compiled with another optimiser after evenpace.keras.distribute: keep the one "
                "that was distributed, whose options such as its learning rate may be changed"
            )
        link.check_trained(model.trainable_variables)
        if class_weight is not None:
            _check_targets(loader)
        is_compiled_again = model.train_function is None
        if is_compiled_again:
            _build(model, loader)
        if is_compiled_again or class_weight != weighted_by:
            model.train_function = _train_function(model, link, loader, losses, class_weight)
            weighted_by = class_weight
        given_callbacks = options.pop("callbacks", None)
        if isinstance(given_callbacks, keras.callbacks.CallbackList):
            given_callbacks = given_callbacks.callbacks
        for callback in keras.tree.flatten(given_callbacks):
            if isinstance(callback, keras.callbacks.BackupAndRestore):
                raise InvalidRequestError(
                    "BackupAndRestore would restore what the job does not know of: use Checkpoint and load "
                    "of evenpace.keras"
                )
        skipped = loader.slices.skip_epochs()
        epochs, verbose = options.get("epochs", 1), options.get("verbose", "auto")
        callbacks = _Callbacks(model, loader, given_callbacks, verbose, epochs)
        model._maybe_symbolic_build = callbacks.note_iterator
        try:
            return fit(x, callbacks=callbacks, **{"initial_epoch": skipped, **options})
        finally:
            del model._maybe_symbolic_build

    return fit_in_job


def _statistics(model: Any) -> list[Any]:
    """Return the variables of a model's batch normalisation that hold moving statistics."""
    layers = model._flatten_layers()
    normalising = [layer for layer in layers if isinstance(layer, keras.layers.BatchNormalization)]
    return [v for layer in normalising for v in layer.non_trainable_variables if v.name.startswith("moving_")]
