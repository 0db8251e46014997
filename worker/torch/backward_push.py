"""PyTorch: a gradient that is pushed while the backward pass computes it.

In micro-batches it is the last one's backward pass, which completes the sum. `worker.early_push` compares
what was pushed with the gradients at each step.
"""

from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from idl.layout import Group
from worker.buckets import Bucket, NoteReady
from worker.early_push import EarlyPush
from worker.exchanges.parameter_server import ParameterServer
from worker.flat_order import FlatOrder
from worker.session import Session
from worker.torch.backward_watch import BackwardWatch
from worker.torch.flat_tensors import FlatTensors
from worker.torch.micro_batches import Accumulation


class BackwardPush:
    """Copies gradients into the flat array as they become ready, and has them pushed bucket by bucket.

    Gradients of parameters on a GPU and of micro-batches that are computed several at once are pushed by the
    step, and so are exact sums.

    Args:
        server: Its exchange.
        parameters: The parameters, which are the first tensors of the flat array.
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
        self._parameters = parameters
        self._gradients = gradients
        self._order = order
        self._accumulation = accumulation
        self._bucket_of = {tensor: n for n, bucket in enumerate(order.buckets) for tensor in bucket}
        self._left: list[int] = []  # of each bucket, gradients that are not ready
        self._ready: set[int] = set()
        self._copied = 0  # buckets
        self._hooks: list[RemovableHandle] = []
        ready: NoteReady = Bucket
        if len(order.buckets) > 1 and all(parameter.is_cpu for parameter in parameters):
            self._hooks = [
                parameter.register_post_accumulate_grad_hook(
                    lambda parameter, number=number: self._note(number)
                )
                for number, parameter in enumerate(parameters)
            ]
            if model is not None:
                watch = BackwardWatch(model)
                session.meter.take_backward, ready = watch.take, watch.ready
        self._push = EarlyPush(session, server, order, groups, ready)

    def finish(self) -> int:
        """Compare what was copied during the backward pass with the gradients; to be called by each step.

        If one has changed since it was pushed, the push is given up, and the iteration will be repeated.

        Returns:
            The number of buckets, from the first, whose gradients are in the flat array.
        """
        copied = self._push.finish(self._is_unchanged)
        while self._push.is_stopped and self._hooks:
            self._hooks.pop().remove()
        return copied

    def _is_unchanged(self, number: int) -> bool:
        gradient = self._parameters[number].grad
        if gradient is None or gradient.is_sparse:
            return False
        return self._gradients.has_bits_of(number, gradient)

    @torch.no_grad()
    def _note(self, number: int) -> None:
        """Note that a parameter's gradient is ready, and copy and push the buckets that are complete."""
        factor = self._factor
        if factor is None or (not self._push.has_begun and not self._begin()):
            return
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
        if self._copied > before:
            self._push.advance(self._copied)

    @property
    def _factor(self) -> float | None:
        """Return what gradients that are ready are multiplied by later; None where more will be added."""
        return 1.0 if self._session.training.micro_batch is None else self._accumulation.last_factor

    def _begin(self) -> bool:
        if not self._push.begin():
            return False
        self._copied = 0
        self._left = list(map(len, self._order.buckets))
        self._ready.clear()
        return True
