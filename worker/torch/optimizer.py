"""PyTorch: an optimiser whose step takes place at the parameter server."""

import types
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from idl.errors import InvalidRequestError
from idl.layout import Group, Layout, Tensor
from worker.exchanges.parameter_server import ParameterServer, ParameterViews
from worker.flat_order import BUCKET_MB, FlatOrder, backward_order, bucket_elements
from worker.learning_rates import Rule, factor_by
from worker.tensor_types import check_floating, flat_dtype
from worker.torch.backward_push import BackwardPush
from worker.torch.element_samples import ElementSamples
from worker.torch.flat_tensors import FlatTensors
from worker.torch.loader import Loader
from worker.torch.memory_watch import note_device, watch_memory
from worker.torch.micro_batches import Accumulation
from worker.torch.optimizer_options import describe
from worker.torch.optimizer_state import put_state, take_state
from worker.torch.running_statistics import running_statistics
from worker.torch.schedules import Schedules
from worker.torch.untrained import untrained, untrained_tensors

_LATER = "what is to be trained from some iteration on gets a group of its own, with lr=0 until then"

_COUNTED = "_wrapped_by_lr_sched"  # of a `step` whose calls schedulers of torch.optim notice, or warn

Optim = TypeVar("Optim", bound=torch.optim.Optimizer)


def distribute(
    optimizer: Optim,
    loader: Loader,
    model: nn.Module | None = None,
    *,
    also: Sequence[Any] = (),
    scale_lr: Rule = "none",
    bucket_cap_mb: float | None = BUCKET_MB,
) -> Optim:
    """Let `optimizer.step()` push the gradient, weighted by the batch size, and pull new parameters.

    Learning-rate schedulers work on the optimiser as before, and their changes go to the parameter server
    with the next step. Its own state (momentum and the like) is there; `state_dict()` fetches it. A state
    that was loaded before is the one that the job resumes from. All workers start from the parameters and the
    state of the first worker, and have its frozen parameters and buffers, and the states of `also`; frozen
    parameters beyond the first 64 MiB are not sent, but refused where they differ. The gradient is expected
    to be of the *mean* loss over the batch.

    Args:
        optimizer: An SGD, Adam or AdamW of torch.optim.
        loader: The evenpace loader of the training data.
        model: The model whose batch normalisation's running statistics are to be the same for all workers:
            after each step, they have the mean over the workers, weighted by their batch sizes. With it,
            backward passes are timed, for the policy `overlap`.
        also: Other objects with `state_dict` and `load_state_dict` that all workers have to begin with alike,
            such as a teacher; in the same order on all of them.
        scale_lr: How learning rates follow the size of the whole batch, where that changes: "linear", "sqrt",
            "adascale", "none", or a function from the size and the script's first one to the factor; "auto"
            is "sqrt" for Adam and AdamW, and "adascale" for SGD. `optimizer` keeps the script's own rates.
        bucket_cap_mb: MiB of gradients that are pushed at a time, while the backward pass computes the next
            ones, the same for every worker; None: all are pushed by the step, and workers of other frameworks
            can train the same job, as they can where a model is no larger than that.

    Returns:
        The same optimiser.

    Raises:
        InvalidRequestError: The parameter server lacks this kind of optimiser or one of its options, the
            optimiser has no parameters to train, another worker's differ, `bucket_cap_mb` is not above 0, a
            service refuses, or it is not the session's first call.
    """
    factor = factor_by(scale_lr, type(optimizer).__name__)
    bucket = bucket_elements(bucket_cap_mb)
    link = _Link(optimizer, loader, model, also, bucket)
    loader.session.training.scale_lr_by(factor)
    own_state_dict = optimizer.state_dict

    # A plain function, bound: learning-rate schedulers unwrap and wrap the method.
    @torch.optim.Optimizer.profile_hook_step  # which calls the optimiser's hooks
    def step(optimizer: torch.optim.Optimizer, closure: Callable[[], Any] | None = None) -> Any | None:
        optimizer._opt_called = True  # type: ignore[attr-defined]  # which a scheduler made before looks at
        return link.step(optimizer, closure)

    if hasattr(optimizer.step, _COUNTED):
        setattr(step, _COUNTED, True)

    def state_dict(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        link.fetch_state(optimizer)
        try:
            return own_state_dict()
        finally:
            optimizer.state.clear()

    def load_state_dict(optimizer: torch.optim.Optimizer, state_dict: Any) -> None:
        raise InvalidRequestError("load the optimiser's state before evenpace.torch.distribute, not after")

    def add_param_group(optimizer: torch.optim.Optimizer, param_group: Any) -> None:
        raise InvalidRequestError(
            f"add all parameter groups before evenpace.torch.distribute, not after; {_LATER}"
        )

    optimizer.step = types.MethodType(step, optimizer)  # type: ignore[method-assign]
    optimizer.state_dict = types.MethodType(state_dict, optimizer)  # type: ignore[method-assign]
    optimizer.load_state_dict = types.MethodType(load_state_dict, optimizer)  # type: ignore[method-assign]
    optimizer.add_param_group = types.MethodType(add_param_group, optimizer)  # type: ignore[method-assign]
    return optimizer


class _Link:
    """The link of an optimiser's tensors and a model's statistics to the parameter server."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        loader: Loader,
        model: nn.Module | None,
        also: Sequence[Any],
        bucket: int,
    ) -> None:
        session = self._session = loader.session
        self._server = ParameterServer.of(session.exchange)
        self._server.check_unprepared()
        name, self._options = describe(optimizer)
        trained = [[p for p in group["params"] if p.requires_grad] for group in optimizer.param_groups]
        self._parameters = [p for group in trained for p in group]
        if not self._parameters:
            raise InvalidRequestError("the optimiser has no parameters that require a gradient")
        if any(map(torch.nn.parameter.is_lazy, self._parameters)):
            raise InvalidRequestError(
                "the model has lazy layers, whose shapes its first batch gives: run it once before "
                "evenpace.torch.distribute, as by `model(inputs)` with one of its batches"
            )
        statistics = {_plain(name): tensor for name, tensor in running_statistics(model).items()}
        self._tensors = [*self._parameters, *statistics.values()]
        self._order = order_of(trained, list(statistics.values()), model, self._server.shards, bucket)
        names = self._names = _names(optimizer, model) | {tensor: name for name, tensor in statistics.items()}
        tensors = tuple(Tensor(names.get(t, ""), tuple(t.shape), str(t.dtype)[6:]) for t in self._tensors)
        check_floating(tensors[: len(self._parameters)])  # batch normalisation counts its batches in integers
        dtype = flat_dtype(tensors)
        initial = np.empty(self._order.elements, dtype=dtype)
        values = FlatTensors(initial, self._order, self._tensors)
        for number, tensor in enumerate(self._tensors):
            values[number] = tensor.detach()
        layout = Layout(dtype, name, self._order.groups(self._options), tensors, self._order.name)
        self._trained = set(map(id, self._parameters))
        self._versions: list[int] = []  # of the parameters, as last pulled
        self._has_warned = self._has_warned_of_fixed = False
        self._schedules = Schedules(optimizer)
        session.before_batch.append(self._schedules.restore)
        note_device(session, self._tensors[0].device)
        state = take_state(optimizer, self._tensors, self._order, initial)
        self._pulled = ParameterViews(
            self._server, lambda flat: FlatTensors(flat, self._order, self._tensors)
        )
        frozen = [p for group in optimizer.param_groups for p in group["params"] if not p.requires_grad]
        fixed = untrained_tensors(model, frozen, self._tensors)
        self._samples = ElementSamples(self._parameters)
        self._fixed_samples, self._fixed_names = ElementSamples(list(fixed.values())), list(fixed)
        session.before_batch.append(self._fixed_samples.note)
        self._server.prepare(layout, initial, state, self._take_parameters, untrained(fixed, also))
        session.start_training()
        watch_memory(session, self._tensors[0].device)
        self._gradients = FlatTensors(self._server.gradient.values, self._order, self._tensors)
        self._accumulation = loader.accumulation = Accumulation(session, self._parameters, model)
        self._backward = BackwardPush(
            session,
            self._server,
            self._parameters,
            self._gradients,
            self._order,
            self._accumulation,
            lambda: self._changed_groups(describe(optimizer)[1]),
            model,
        )

    @torch.no_grad()
    def step(self, optimizer: torch.optim.Optimizer, closure: Callable[[], Any] | None = None) -> Any | None:
        """Push the gradients and pull the new parameters, in place of `optimizer.step`.

        Raises:
            InvalidRequestError: Not all micro-batches have been gone through, a gradient is sparse, the
                optimiser has other parameters to train than before, or gradients were changed that were
                summed exactly; or as `Session.finish_iteration` raises.
        """
        self._accumulation.check()
        self._check_trained(optimizer)
        self._warn_of_changes()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._fill_gradient()
        _, options = describe(optimizer)
        self._session.finish_iteration(self._changed_groups(options))
        self._options = options  # not before: a step that is refused sends none
        if self._session.is_repeated:
            self._schedules.save()
        return loss

    def _check_trained(self, optimizer: torch.optim.Optimizer) -> None:
        """Check that no parameter requires a gradient that did not when the job was opened."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.requires_grad and id(parameter) not in self._trained:
                    raise InvalidRequestError(
                        f"{self._name(parameter)} requires a gradient, but did not when "
                        f"evenpace.torch.distribute was called, so that it would not be trained; {_LATER}"
                    )

    def _warn_of_changes(self) -> None:
        """Warn, once each, if parameters have other values than those that were pulled, or others change."""
        if not self._has_warned and (number := self._changed()) is not None:
            self._has_warned = True
            self._session.log.of(__name__).warning(
                "%s was changed outside of optimizer.step(), as by model.load_state_dict or p.data.clamp_: "
                "such changes are lost with the next step, since the parameter server has the parameters; "
                "make them before evenpace.torch.distribute, or a part of the model's forward pass, as by "
                "torch.nn.utils.parametrize",
                self._name(self._parameters[number]),
            )
        if not self._has_warned_of_fixed and (number := self._fixed_samples.changed()) is not None:
            self._has_warned_of_fixed = True
            self._session.log.of(__name__).warning(
                "%s was changed between a batch and its step, as by a forward pass: it is not trained, and "
                "follows each worker's own part of the batches, so that models differ, unlike statistics of "
                "batch normalisation; compute it from what all workers have alike, or train by "
                "DistributedDataParallel and evenpace.torch.balance, which uses one worker's",
                self._fixed_names[number],
            )

    def _changed(self) -> int | None:
        """Return the number of a parameter that has other values than those that were pulled.

        Writes through `parameter.data` are not counted by PyTorch: these are seen by samples.
        """
        for number, (parameter, own) in enumerate(zip(self._parameters, self._versions, strict=True)):
            is_written = parameter._version != own
            if is_written and not torch.equal(parameter, self._pulled.now[number].to(parameter)):
                return number
        return self._samples.changed()

    def _name(self, parameter: torch.Tensor) -> str:
        return self._names.get(parameter) or f"a parameter of shape {tuple(parameter.shape)}"

    def _fill_gradient(self) -> None:
        """Hand the gradients and statistics to the session."""
        sums = self._accumulation.exact_sums()
        if sums is not None:
            assert self._session.assignment is not None
            parts = torch.split(sums.cpu(), [tensor.numel() for tensor in self._tensors])
            for number, part in enumerate(parts):
                self._gradients[number] = part.view(self._tensors[number].shape)
            self._server.gradient.note_sums(self._session.assignment)
            return
        self._accumulation.check_dense()
        self._accumulation.note_scaling()
        for bucket in self._order.buckets[self._backward.finish() :]:
            for number in bucket:
                tensor = self._tensors[number]
                self._gradients[number] = tensor.grad if number < len(self._parameters) else tensor

    def fetch_state(self, optimizer: torch.optim.Optimizer) -> None:
        """Copy the optimiser's state from the parameter server into the optimiser."""
        state = self._server.optimizer_state(self._session.assignment)
        put_state(optimizer, self._tensors, self._order, state)

    @torch.no_grad()
    def _take_parameters(self) -> None:
        self._versions = [0] * len(self._parameters)
        for number in range(len(self._tensors)):
            self._take(number)
        self._samples.note()

    def _take(self, number: int) -> None:
        """Give a tensor the value that was pulled."""
        tensor = self._tensors[number]
        if tensor.is_floating_point():
            self._pulled.now.copy_to(number, tensor)
        else:
            tensor.copy_(self._pulled.now[number].round())  # of a count, a mean
        if number < len(self._parameters):
            self._versions[number] = tensor._version

    def _changed_groups(self, options: list[dict[str, float]]) -> tuple[Group, ...] | None:
        return self._order.groups(options) if options != self._options else None


def order_of(
    groups: Sequence[Sequence[torch.Tensor]],
    statistics: Sequence[torch.Tensor],
    model: nn.Module | None,
    shards: int,
    bucket: int,
) -> FlatOrder:
    """Return the order of the elements of an optimiser's groups, and then of statistics, at the shards.

    Args:
        model: The model; a backward pass goes through its parameters from the last to the first. None:
            through those of the groups.
    """
    places = {
        id(parameter): place for place, parameter in enumerate(() if model is None else model.parameters())
    }
    return backward_order(
        [[parameter.numel() for parameter in group] for group in groups],
        [tensor.numel() for tensor in statistics],
        [places.get(id(parameter), -1) for group in groups for parameter in group],
        shards,
        bucket,
    )


def _names(optimizer: torch.optim.Optimizer, model: nn.Module | None) -> dict[torch.Tensor, str]:
    """Return the parameters' names, as far as they are known."""
    names = {
        parameter: name
        for group in optimizer.param_groups
        for parameter, name in zip(group["params"], group.get("param_names", ()), strict=False)
    }
    if model is not None:
        names |= {parameter: name for name, parameter in model.named_parameters()}
    return {parameter: _plain(name) for parameter, name in names.items()}


def _plain(name: str) -> str:
    """Return a tensor's name without the parts that `torch.compile` adds."""
    return name.replace("_orig_mod.", "").removeprefix(".")
