"""PyTorch: a gradient that is pushed while the backward pass computes it.

In micro-batches it is the last one's backward pass, which completes the sum. What changes gradients after
that, such as clipping, would be lost: the first batches show whether a script does, and what was pushed is
compared with the gradients at each step.
"""

import logging
from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from idl.layout import Group
from idl.plan import Assignment
from worker.buckets import Bucket
from worker.exchanges.parameter_server import ParameterServer
from worker.flat_order import FlatOrder
from worker.session import Session
from worker.torch.backward_watch import BackwardWatch
from worker.torch.flat_tensors import FlatTensors
from worker.torch.micro_batches import Accumulation

log = logging.getLogger(__name__)

_TRIALS = 3  # batches in which nothing may have changed after the backward pass
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


class BackwardPush:
    """Copies gradients into the flat array as they become ready, and has them pushed bucket by bucket.

    The last bucket is never pushed before the step: until then no shard has all of its part, and the push can
    be given up. Gradients of parameters on a GPU and of micro-batches that are computed several at once are
    pushed by the step, and so are exact sums.

    Args:
        session: The worker's session.
        server: Its exchange.
        parameters: The parameters, which are the first tensors of the flat array.
        gradients: The flat array of the gradient.
        order: Its order.
        accumulation: The sums over micro-batches.
        groups: Returns the parameter groups, if their options have changed since the last step.
        model: The model, whose backward passes are timed; None: none are.
    """

    def __init__(
        self,
        session: Session,
        server: ParameterServer,
        parameters: Sequence[torch.Tensor],
        gradients: FlatTensors,
        order: FlatOrder,
        accumulation: Accumulation,
        groups: Callable[[], Sequence[Group] | None],
        model: nn.Module | None = None,
    ) -> None:
        self._session = session
        self._server = server
        self._parameters = parameters
        self._gradients = gradients
        self._order = order
        self._accumulation = accumulation
        self._groups = groups
        self._bucket_of = {tensor: n for n, bucket in enumerate(order.buckets) for tensor in bucket}
        self._part: Assignment | None = None  # whose backward pass is under way, or was last
        self._left: list[int] = []  # of each bucket, gradients that are not ready
        self._ready: set[int] = set()
        self._copied = 0  # buckets
        self._options: Sequence[Group] | None = None  # as `groups` has returned them for `_part`
        self._trials = 0
        self._hooks: list[RemovableHandle] = []
        self._watch: BackwardWatch | None = None
        if len(order.buckets) > 1 and all(parameter.is_cpu for parameter in parameters):
            self._hooks = [
                parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                    lambda parameter, number=number: self._note(number)
                )
                for number, parameter in enumerate(parameters)
            ]
            if model is not None:
                self._watch = BackwardWatch(model)
                session.meter.take_backward = self._watch.take

    def finish(self) -> int:
        """Compare what was copied during the backward pass with the gradients; to be called by each step.

        If one has changed since it was pushed, the push is given up, and the iteration will be repeated.

        Returns:
            The number of buckets, from the first, whose gradients are in the flat array.
        """
        copied, self._copied, part, self._part = self._copied, 0, self._part, None
        if part is not self._session.assignment or not copied:
            return 0
        if self._groups() != self._options:
            self._stop("the optimiser's options change between the backward pass and the step")
            return 0
        for bucket in self._order.buckets[:copied]:
            for number in bucket:
                gradient = self._parameters[number].grad
                if gradient is None or not _same_bits(gradient, self._gradients[number]):
                    self._stop(
                        "gradients change after the backward pass, as by clipping, a GradScaler or a second "
                        "backward pass"
                    )
                    return 0
        self._trials += 1
        return copied

    @torch.no_grad()
    def _note(self, number: int) -> None:
        """Note that a parameter's gradient is ready, and copy and push the buckets that are complete."""
        now, factor = self._session.assignment, self._factor
        if now is None or factor is None:
            return
        if self._part is not now:
            if not self._server.may_begin(now):
                return
            self._begin(now)
        gradient = self._parameters[number].grad
        if number in self._ready or gradient is None or gradient.is_sparse:
            return
        self._ready.add(number)
        self._left[self._bucket_of[number]] -= 1
        before = self._copied
        while self._copied < len(self._left) - 1 and not self._left[self._copied]:
            for tensor in self._order.buckets[self._copied]:
                its = self._parameters[tensor].grad
                assert its is not None
                self._gradients[tensor] = its if factor == 1 else its * factor
            self._copied += 1
        if before == self._copied:
            return
        if not before:
            self._options = self._groups()
        if self._trials >= _TRIALS:
            if not before:
                ready = Bucket if self._watch is None else self._watch.ready
                self._server.begin_push(now, self._options, self._session.training.lr_scale, ready)
            self._server.advance_push(self._order.ends[self._copied - 1])

    @property
    def _factor(self) -> float | None:
        """Return what gradients that are ready are multiplied by later; None where more will be added."""
        return 1.0 if self._session.training.micro_batch is None else self._accumulation.last_factor

    def _begin(self, part: Assignment) -> None:
        self._part, self._copied = part, 0
        self._left = list(map(len, self._order.buckets))
        self._ready.clear()

    def _stop(self, reason: str) -> None:
        """Push gradients by the step from now on."""
        while self._hooks:
            self._hooks.pop().remove()
        log.info(
            "%s: gradients are pushed by optimizer.step(), not while the backward pass runs",
            reason,
            extra=self._session.log_fields(),
        )
        self._server.give_up_push(reason)


def _same_bits(gradient: torch.Tensor, pushed: torch.Tensor) -> bool:
    """Return whether a gradient is bit by bit, NaNs included, what was copied from it."""
    if gradient.is_sparse:
        return False
    bits = _BITS[pushed.element_size()]
    return torch.equal(gradient.to(pushed.dtype).contiguous().view(bits), pushed.contiguous().view(bits))
