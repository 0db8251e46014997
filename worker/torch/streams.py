"""PyTorch: micro-batches computed at once on streams of one GPU, all with the same parameters.

JABAS (section 4) calls a stream that computes micro-batches a virtual stream worker, and copies the updated
weights to each. Here the passes of all streams read the same tensors, which change between iterations only:
so there is nothing to copy. What a pass writes, gradients and running statistics, is each stream's own.

One thread asks for all passes, one after the other; on a GPU they run while it asks for the next. Elsewhere
they are run in turn by the same code, with the same results.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch


class Lane:
    """A place for one micro-batch under way: a stream of the GPU, and gradients and buffers of its own.

    Args:
        buffers: The buffers that a forward pass changes.
    """

    def __init__(self, parameters: Sequence[torch.Tensor], buffers: Sequence[torch.Tensor]) -> None:
        self._parameters = parameters
        self._buffers = buffers
        self._device = parameters[0].device
        self._stream: torch.cuda.Stream | None = None
        if self._device.type == "cuda":
            self._stream = torch.cuda.Stream(self._device)
        with self._on_stream():  # whose memory it is then
            self._own = [torch.empty_like(buffer) for buffer in buffers]
        self._gradients: list[torch.Tensor | None] = []

    @contextlib.contextmanager
    def computing(self) -> Iterator[None]:
        """Compute a micro-batch in the `with` block, from loading to the backward pass.

        Parameters have no gradient at first, and buffers have any values. Afterwards both are as before, and
        what the block has made of them is in `results`. If it raises an error, nothing of it is left.
        """
        if self._stream is not None:
            # By then the parameters are set, and this lane's last results are taken.
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
        torch.clear_autocast_cache()  # of parameters that were cast on another stream
        with self._in_place([None] * len(self._parameters)), self._on_stream():
            yield
            # A backward pass makes this stream wait for any other on which it has set gradients.
            self._gradients = [parameter.grad for parameter in self._parameters]
        torch.clear_autocast_cache()

    @contextlib.contextmanager
    def results(self) -> Iterator[list[torch.Tensor | None]]:
        """Show the results in the `with` block, for work on the caller's stream.

        Parameters have the micro-batch's gradients, and buffers its values; afterwards both are as before.

        Yields:
            The gradients, which are the caller's from now on; None for a parameter without.
        """
        gradients, self._gradients = self._gradients, []
        if self._stream is not None:
            current = torch.cuda.current_stream(self._device)
            current.wait_stream(self._stream)
            for gradient in gradients:
                if gradient is not None:
                    gradient.record_stream(current)  # its memory is another stream's
        with self._in_place(gradients):
            yield gradients

    @contextlib.contextmanager
    def _in_place(self, gradients: Sequence[torch.Tensor | None]) -> Iterator[None]:
        """Let the parameters have these gradients, and the buffers this lane's memory."""
        before = [parameter.grad for parameter in self._parameters]
        shared = [buffer.data for buffer in self._buffers]
        self._set(gradients, self._own)
        try:
            yield
        finally:
            self._set(before, shared)

    def _set(self, gradients: Sequence[torch.Tensor | None], memory: Sequence[torch.Tensor]) -> None:
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient
        for buffer, data in zip(self._buffers, memory, strict=True):
            buffer.data = data

    def _on_stream(self) -> contextlib.AbstractContextManager[Any]:
        """Make the lane's stream the current one, if it has one."""
        return contextlib.nullcontext() if self._stream is None else torch.cuda.stream(self._stream)
