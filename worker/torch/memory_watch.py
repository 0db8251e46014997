"""PyTorch: the memory in use of a worker's GPU, and forward and backward passes that survive a lack of it."""

import contextlib
import gc
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from idl.errors import EvenpaceError, InvalidRequestError
from worker.data.batches import cut, map_arrays, samples_in, weighted_mean
from worker.exchanges.all_reduce import AllReduce
from worker.resources.device_memory import DeviceMemory, MemoryWatch, limit_between
from worker.torch.micro_batches import SlicedBatch

if TYPE_CHECKING:  # so that this runs without the packages of the services' clients, as in lab/gpu
    from worker.data.micro_batches import MicroBatch
    from worker.session import Session
    from worker.torch.loader import Loader

# Messages of failed allocations that are no OutOfMemoryError: on a CPU, and in CUDA's libraries.
_MESSAGES = (
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "std::bad_alloc",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)


class MemoryExhaustedError(EvenpaceError, MemoryError):
    """A lack of memory where the iteration cannot be repeated in smaller pieces."""


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error of PyTorch means that memory could not be allocated."""
    if isinstance(error, (torch.cuda.OutOfMemoryError, MemoryError)):
        return not isinstance(error, EvenpaceError)
    return isinstance(error, RuntimeError) and any(message in str(error) for message in _MESSAGES)


def read_device(device: torch.device) -> DeviceMemory:
    """Read a CUDA device's figures, with the peak since the last call.

    Memory that the allocator keeps for reuse (reserved, but not allocated) counts as free.
    """
    if device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    free, total = torch.cuda.mem_get_info(device)
    reserved = torch.cuda.memory_reserved(device)
    peak = torch.cuda.max_memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    fraction = 1.0
    if hasattr(torch.cuda, "get_per_process_memory_fraction"):  # since PyTorch 2.8
        fraction = torch.cuda.get_per_process_memory_fraction(device)
    shortages = torch.cuda.memory_stats(device).get("num_alloc_retries", 0)
    return DeviceMemory(total, max(0, total - free - reserved), peak, int(fraction * total), shortages)


def note_device(session: "Session", device: torch.device) -> None:
    """Set the session's device to the name of the GPU that it trains on, or on a CPU its threads."""
    if device.type == "cuda":
        session.device.describe(torch.cuda.get_device_name(device))
    else:
        session.device.describe(threads=torch.get_num_threads())


def watch_memory(session: "Session", device: torch.device) -> MemoryWatch | None:
    """Have the session report its device's memory, and learn limits from it.

    Nothing happens on a CPU, whose memory is reported in any case, or if it is watched already.

    Returns:
        The watch; None on a CPU.
    """
    if device.type != "cuda":
        return None
    watch = session.meter.memory_usage
    if not isinstance(watch, MemoryWatch):
        torch.cuda.reset_peak_memory_stats(device)
        watch = MemoryWatch(session, lambda: read_device(device))
        session.meter.memory_usage = watch
    return watch


class WithinMemory:
    """A forward and backward pass, done in smaller pieces where memory runs out; see `within_memory`."""

    def __init__(
        self, forward_backward: Callable[..., Any], model: nn.Module, session: "Session", weighs: bool
    ) -> None:
        self.limit: int | None = None  # most samples that are tried at once; None until memory has run out
        self._forward_backward = forward_backward
        self._weighs = weighs
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        if not self._parameters:
            raise InvalidRequestError("the model has no parameters that require a gradient")
        self._session = session
        self._reduction = _Reduction(model) if isinstance(model, DistributedDataParallel) else None
        # With a parameter server, which weights by itself, nothing is noted there.
        self._weighting = session.exchange if isinstance(session.exchange, AllReduce) else AllReduce()
        self._watch = watch_memory(session, self._parameters[0].device)
        self._fitted = 0  # the most samples that are known to fit at once

    def __call__(self, *batch: Any) -> Any:
        """Process a batch, adding the gradient of its mean loss to the parameters' `grad`.

        Args:
            batch: The function's arguments: tensors, or nested tuples and dictionaries of them, whose first
                dimension is the samples. In a job with micro-batches, what the loader yields.

        Returns:
            The function's result; over several pieces, the mean, weighted by their samples.

        Raises:
            MemoryExhaustedError: Not even one sample, or micro-batch, fits; or under DDP, gradients had begun
                to be reduced.
            InvalidRequestError: The batch cannot be cut, or is a micro-batch.
        """
        if len(batch) == 1 and isinstance(batch[0], SlicedBatch):
            return self._by_micro_batches(batch[0])
        if self._session.training.micro_batch is not None:
            raise InvalidRequestError(
                "the job has micro-batches, which must not be cut: "
                "give `within_memory` what the loader yields"
            )
        samples = samples_in(batch)
        sizes: list[int] = []
        results: list[Any] = []
        failed = None  # the fewest samples that have not fitted
        fitted = 0  # the most that have since
        most = min(samples, self.limit or samples)  # at once
        if self._reduction is not None:
            self._reduction.begin()
        while (left := samples - sum(sizes)) > 0:
            if self._reduction is not None and left == most > max(1, self._fitted):
                # This may fail, and must not once gradients are being reduced: so take all but one first.
                size = left - 1
            else:
                # Even pieces: a last one of few samples would take as long as one of many.
                size = -(-left // -(-left // most))
            start = samples - left
            if size < samples and self._session.weights.are_given:
                raise InvalidRequestError(
                    f"{samples} samples do not fit into memory at once, and where the loader has weight=, "
                    f"pieces of them cannot be weighted: start with a lower --max-batch-size, or make the "
                    f"loaders with micro_batch="
                )
            part = batch if size == samples else cut(batch, start, start + size, samples)
            weight = size / samples if self._weighs else 1.0
            if self._attempt(part, weight, size == left, results):
                sizes.append(size)
                fitted = max(fitted, size)
                continue
            if size == 1:
                raise MemoryExhaustedError("memory runs out with a single sample, which cannot be cut")
            failed, fitted, most = size, 0, -(-size // 2)
            _free_memory(self._parameters[0].device)
        # Where all but one were taken first, all of them have fitted.
        self._note(samples if most == samples else fitted, failed)
        if self._watch is not None and len(sizes) > 1:
            self._watch.samples = max(sizes)
        return weighted_mean(results, [size / samples for size in sizes])

    def _by_micro_batches(self, batch: SlicedBatch) -> Any:
        """Process a worker's part of a batch; where memory runs out, fewer micro-batches at once."""
        results: list[Any] = []
        weights: list[float] = []
        if self._reduction is not None:
            self._reduction.begin()
        with batch.accumulation.slice(batch.part):
            for part in batch.micro_batches():
                while not self._attempt_micro_batch(batch, part, results):
                    _free_memory(self._parameters[0].device)
                weights.append(batch.accumulation.weight_at_hand)
        whole = sum(weights)
        return weighted_mean(results, [weight / whole if whole else 1 / len(weights) for weight in weights])

    def _attempt_micro_batch(self, batch: SlicedBatch, part: "MicroBatch", results: list[Any]) -> bool:
        """Add a micro-batch's gradient, or leave the accumulated one unchanged; return whether it fitted."""
        weighted_before = self._weighting.weighted_samples
        try:
            with batch.accumulation.micro_batch(part):
                loaded = batch.load(part)
                arguments = loaded if isinstance(loaded, (tuple, list)) else (loaded,)
                results.append(map_arrays(_detached, self._forward_backward(*arguments)))
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            if not batch.accumulation.lower_at_once():
                raise MemoryExhaustedError(
                    f"a micro-batch of {len(part.indices)} samples does not fit into the memory of "
                    f"{self._parameters[0].device}: choose a smaller micro_batch"
                ) from error
            if self._reduction is not None:
                self._reduction.failed()
            self._weighting.weighted_samples = weighted_before
            return False
        return True

    def _attempt(self, part: Any, weight: float, last: bool, results: list[Any]) -> bool:
        """Add a piece's gradient, times `weight`, to the accumulated one, or leave that unchanged.

        Returns:
            Whether it fitted.
        """
        reduction = self._reduction
        reduces = reduction is not None and last
        before = [p.grad for p in self._parameters]
        weighted_before = self._weighting.weighted_samples  # which the function may change
        if not reduces:
            # If the piece fails half-way, the accumulated gradient is unchanged.
            for parameter in self._parameters:
                parameter.grad = None
        begun = False  # to accumulate

        def scale(gradient: torch.Tensor) -> torch.Tensor:
            nonlocal begun
            begun = True
            return gradient * weight if weight < 1 else gradient

        hooked = self._parameters if reduces or weight < 1 else []
        hooks = [p.register_hook(scale) for p in hooked]
        try:
            with reduction.without() if reduction and not last else contextlib.nullcontext():
                results.append(map_arrays(_detached, self._forward_backward(*part)))
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            if reduces and begun:
                raise MemoryExhaustedError(
                    "memory ran out when DDP had begun to reduce gradients: the other workers count on them, "
                    "so that this iteration cannot be done again; start with a lower --max-batch-size"
                ) from error
            self._session.log.of(__name__).warning("memory ran out: %s", str(error).partition("\n")[0])
            if reduction is not None:
                reduction.failed()
            for parameter, gradient in zip(self._parameters, before, strict=True):
                parameter.grad = gradient
            self._weighting.weighted_samples = weighted_before
            return False
        finally:
            for hook in hooks:
                hook.remove()
        if not reduces:
            self._accumulate(before)
        return True

    @torch.no_grad()
    def _accumulate(self, before: list[torch.Tensor | None]) -> None:
        for parameter, gradient in zip(self._parameters, before, strict=True):
            if gradient is not None:
                parameter.grad = gradient if parameter.grad is None else gradient.add_(parameter.grad)

    def _note(self, fitted: int, failed: int | None) -> None:
        """Learn from what has fitted and what has not."""
        if failed is None:
            self._fitted = max(self._fitted, fitted)
            return
        # An earlier size that fitted does not count any more, if no more samples have failed now.
        self._fitted = self._fitted if fitted < self._fitted < failed else fitted
        self.limit = limit_between(self._fitted, failed)
        self._session.log.of(__name__).warning(
            "%d samples do not fit, %d do: at most %d now", failed, self._fitted, self.limit
        )
        self._session.limits.lower_maximum(self.limit)


class _Reduction:
    """The control of a model under DDP, so that each iteration's collectives take place exactly once."""

    def __init__(self, model: DistributedDataParallel) -> None:
        self._model = model
        self._entered = False
        model.register_forward_pre_hook(self._enter)

    def begin(self) -> None:
        """Begin an iteration."""
        self._entered = False

    def without(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which gradients are accumulated and not reduced."""
        without: contextlib.AbstractContextManager[None] = self._model.no_sync()
        return without

    def failed(self) -> None:
        """Prepare to run the model again, without another broadcast of buffers if there was one."""
        if self._entered:
            self._model.require_forward_param_sync = False

    def _enter(self, *_: object) -> None:
        self._entered = True


def within_memory(
    forward_backward: Callable[..., Any], model: nn.Module, loader: "Loader", *, weighs: bool = True
) -> WithinMemory:
    """Wrap a forward and backward pass, so that it is done in smaller pieces where memory runs out.

    When an allocation fails, gradients are restored, the device's cache is freed, and the batch is halved
    until it fits. Each piece's gradient is weighted by its share of the samples, so that the sum is the
    gradient of the mean over the whole slice, to rounding error. From then on the manager assigns this worker
    fewer samples; batches planned before are cut into pieces before memory runs out.

    In a job with micro-batches, what the loader yields is the batch. It is gone through as
    `micro_batches` does; where memory runs out, fewer of them are computed at once, from then on.

    The function is called with a batch, or with a piece of one. It runs the model and calls `backward` of
    the *mean* loss over its arguments, and does not change gradients otherwise. It returns means (such as the
    loss), which are averaged by weight: numbers, tensors, tuples and dictionaries of these, or None.

    Pieces have random numbers and batch statistics of their own. Dropout is equivalent, but not repeated;
    batch normalisation normalises by each piece, and its running statistics move once for each, also for one
    that then fails. With group or layer normalisation nothing changes.

    Under DDP all pieces but the last run in `no_sync`. A batch larger than any that has fitted begins with
    all samples but one, so that a pass that may fail does not reduce gradients. If memory runs out
    nevertheless when some have been reduced, that is an error.

    Args:
        forward_backward: The loop's forward and backward pass.
        model: The model whose gradients it computes; with DDP, the wrapped one.
        loader: The evenpace loader of the training data.
        weighs: Whether pieces' gradients are to be weighted by their share; False where the function does
            so itself, by `weighted(loss, samples=...)` with the samples of its arguments.

    Raises:
        InvalidRequestError: The model has no parameters to train.
    """
    return WithinMemory(forward_backward, model, loader.session, weighs)


def _free_memory(device: torch.device) -> None:
    gc.collect()  # an error's traceback may hold the tensors of the failed pass
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)  # a failed pass does not count


def _detached(result: Any) -> Any:
    """Detach a result from its graph, whose memory is to be freed."""
    return result.detach() if isinstance(result, torch.Tensor) else result
