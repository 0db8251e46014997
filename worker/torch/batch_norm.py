"""PyTorch: batch normalisation under uneven batches, with the statistics of the whole batch.

This module knows no optimiser: with statistics over all workers, the loss must be weighted before its
backward pass.
"""

from typing import Any

import torch
from torch import distributed, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from idl.errors import InvalidRequestError
from worker.exchanges.all_reduce import AllReduce
from worker.own_session import own_session
from worker.session import Session


class SyncBatchNorm(_BatchNorm):
    """Batch normalisation by the whole batch's statistics, over all ranks, each sample with the same weight.

    It differs from `torch.nn.SyncBatchNorm` in that it works on CPUs, too, and leaves out the sample of a
    worker without a part in the batch. All ranks must call it equally often, also where they take their
    batches in pieces. A copy of it, or one from a file, has no session: it is for evaluation.

    Args:
        num_features: Channels, the input's second dimension.
        session: This worker's session; by default this process's.
        process_group: The ranks' process group; by default torch.distributed's.
        eps, momentum, affine, track_running_stats, device, dtype: As for `torch.nn.BatchNorm1d`.

    Raises:
        InvalidRequestError: The session has a parameter server, which would weight gradients too late.
    """

    def __init__(
        self,
        num_features: int,
        *,
        session: Session | None = None,
        process_group: distributed.ProcessGroup | None = None,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype)
        session = session or own_session()
        AllReduce.of(
            session.exchange,
            "synchronised statistics mix workers' gradients before the parameter server weights them: "
            "leave out `ps`, and train with torch.distributed and weighted(loss)",
        )
        self._session: Session | None = session
        self._group = process_group

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's name
        """Normalise (samples, channels, ...); in evaluation as `torch.nn.BatchNorm1d`, on this rank."""
        if not self.training:
            return super().forward(input)
        if self._session is None or self._session.assignment is None:
            raise InvalidRequestError(
                "SyncBatchNorm is trained in a session, on batches of an evenpace loader"
            )
        if self._session.training.micro_batch is not None:
            raise InvalidRequestError(
                "SyncBatchNorm takes all ranks in each pass, but in a job with micro-batches they have other "
                "numbers of passes: use torch.nn's, which normalises within a micro-batch"
            )
        shape = [1, -1] + [1] * (input.dim() - 2)  # of values for each channel
        dims = [d for d in range(input.dim()) if d != 1]
        wide = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
        local_var, local_mean = torch.var_mean(wide, dims, correction=0)
        local_count = wide.new_full((1,), wide.numel() / wide.shape[1])
        # Variances about each rank's own mean lose no digits; sums of squares would.
        row = torch.cat([local_mean, local_var, local_count])
        # rows: (ranks, 2 * channels + 1), 0 except this rank's, and all 0 where it has no sample. Every
        # rank's row stays in the graph, since all must take part in the backward pass.
        ranks = torch.arange(distributed.get_world_size(self._group), device=wide.device)
        own = ranks == (distributed.get_rank(self._group) if self._session.assignment.count else -1)
        rows = torch.where(own.unsqueeze(1), row, 0)
        rows = _Sum.apply(rows, self._group)  # type: ignore[no-untyped-call]
        means, variances, counts = torch.split(rows, [self.num_features, self.num_features, 1], dim=1)
        counts = counts.detach()
        count = counts.sum()
        mean = (counts * means).sum(0) / count
        variance = (counts * (variances + (means - mean).square())).sum(0) / count
        self._update(mean.detach(), variance.detach(), count)
        output = (wide - mean.view(shape)) * (variance + self.eps).rsqrt().view(shape)
        if self.affine:
            output = output * self.weight.view(shape) + self.bias.view(shape)
        return output.to(input.dtype)

    def _update(self, mean: torch.Tensor, variance: torch.Tensor, count: torch.Tensor) -> None:
        """Move the running statistics, as `torch.nn.BatchNorm1d` does."""
        if not self.track_running_stats:
            return
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        momentum = 1 / int(self.num_batches_tracked) if self.momentum is None else self.momentum
        unbiased = variance * (count / (count - 1).clamp(min=1))
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), momentum)

    def _check_input_dim(self, input: torch.Tensor) -> None:  # noqa: A002 - torch's name
        if input.dim() < 2:
            raise ValueError(f"expected at least 2 dimensions, (samples, channels, ...), got {input.dim()}")

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without session and process group, which belong to this process."""
        return self.__dict__ | {"_session": None, "_group": None}


def convert_sync_batchnorm(
    model: nn.Module, process_group: distributed.ProcessGroup | None = None, *, session: Session | None = None
) -> nn.Module:
    """Replace every batch normalisation of a model by a `SyncBatchNorm`.

    Parameters and running statistics stay the same tensors, so that it may be called before or after the
    optimiser is made; but before the model is wrapped.

    Args:
        model: The model; its modules are replaced in place.
        session: This worker's session; by default this process's.
        process_group: The ranks' process group; by default torch.distributed's.

    Returns:
        The model, or its replacement if it is a batch normalisation itself.
    """
    if isinstance(model, _BatchNorm) and not isinstance(model, SyncBatchNorm):
        converted = SyncBatchNorm(
            model.num_features,
            session=session,
            process_group=process_group,
            eps=model.eps,
            momentum=model.momentum,
            affine=False,
            track_running_stats=False,
        )
        converted.affine, converted.track_running_stats = model.affine, model.track_running_stats
        for name in ("weight", "bias"):
            converted.register_parameter(name, getattr(model, name))
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            converted.register_buffer(name, getattr(model, name))
        converted.training = model.training
        return converted
    for name, child in model.named_children():
        setattr(model, name, convert_sync_batchnorm(child, process_group, session=session))
    return model


@torch.no_grad()
def average_statistics(
    model: nn.Module, process_group: distributed.ProcessGroup | None = None, *, session: Session | None = None
) -> None:
    """Replace the running statistics of batch normalisation by their mean over all ranks.

    To be called by all ranks, before the model is evaluated or saved. Each rank is weighted by the samples
    that it has taken since the last call. Variances are averaged as they are, since each is an estimate of
    the same variance.

    Args:
        model: The model; if it is in `DistributedDataParallel`, with `broadcast_buffers=False` (in newer
            versions of PyTorch, `forward_sync_buffers=False`), since otherwise all ranks would have the
            statistics of rank 0's part of each batch.
        session: This worker's session; by default this process's.
        process_group: The ranks' process group; by default torch.distributed's.

    Raises:
        InvalidRequestError: The model's wrapper broadcasts buffers.
    """
    if isinstance(model, DistributedDataParallel) and model.broadcast_buffers:
        raise InvalidRequestError(
            "DistributedDataParallel gives all ranks the statistics of rank 0 in each iteration: "
            "make it with broadcast_buffers=False (in newer versions of PyTorch, forward_sync_buffers=False)"
        )
    statistics = [
        buffer
        for module in model.modules()
        if isinstance(module, _BatchNorm)
        for buffer in (module.running_mean, module.running_var)
        if buffer is not None
    ]
    samples = (session or own_session()).meter.take_samples()
    if not statistics:
        return
    flat = torch.cat(
        [buffer.double().flatten() for buffer in statistics] + [statistics[0].new_ones(1).double()]
    )
    flat *= samples
    distributed.all_reduce(flat, group=process_group)
    if flat[-1] == 0:
        return  # nothing was trained since the last call
    means = torch.split(flat[:-1] / flat[-1], [buffer.numel() for buffer in statistics])
    for buffer, mean in zip(statistics, means, strict=True):
        buffer.copy_(mean.view_as(buffer))


class _Sum(torch.autograd.Function):
    """The differentiable sum over all ranks; its backward pass sums all ranks' gradients."""

    @staticmethod
    def forward(ctx: Any, own: torch.Tensor, group: distributed.ProcessGroup | None) -> torch.Tensor:
        ctx.group = group
        total = own.clone()
        distributed.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        total = gradients[0].clone(memory_format=torch.contiguous_format)
        distributed.all_reduce(total, group=ctx.group)
        return total, None
