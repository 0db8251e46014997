"""What a PyTorch training script uses: `DataLoader`, and what carries its gradients to the other workers.

With a parameter server that is `distribute`; with `torch.distributed`, `balance` or `weighted`. What does not
fit into memory goes through `within_memory`.
"""

import atexit
from collections.abc import Iterable
from typing import Any, Literal

from torch import Tensor, nn
from torch.distributed import ProcessGroup

from evenpace.context import session as current_session
from worker.session import Session
from worker.torch import batch_norm as torch_batchnorm
from worker.torch import ddp as torch_ddp
from worker.torch import loader as torch_data
from worker.torch import partitioned_loader as torch_partitions
from worker.torch import stream_loader as torch_stream
from worker.torch.ddp import balance
from worker.torch.loader import MapStyleDataset
from worker.torch.memory_watch import MemoryExhaustedError, watch_memory, within_memory
from worker.torch.optimizer import distribute

__all__ = [
    "DataLoader",
    "MemoryExhaustedError",
    "PartitionedLoader",
    "StreamLoader",
    "SyncBatchNorm",
    "average_statistics",
    "balance",
    "convert_sync_batchnorm",
    "distribute",
    "watch_memory",
    "weighted",
    "within_memory",
]


class DataLoader(torch_data.DataLoader):
    """`worker.torch.loader.DataLoader` in this process's session, unless another is given."""

    def __init__(
        self, dataset: MapStyleDataset, batch_size: int = 1, *, session: Session | None = None, **options: Any
    ) -> None:
        super().__init__(dataset, batch_size, session=session or current_session(), **options)


class PartitionedLoader(torch_partitions.PartitionedLoader):
    """The worker's `PartitionedLoader` in this process's session, unless another is given."""

    def __init__(
        self,
        dataset: MapStyleDataset,
        batch_size: int = 1,
        *,
        partitions: str,
        session: Session | None = None,
        **options: Any,
    ) -> None:
        session = session or current_session()
        super().__init__(dataset, batch_size, session=session, partitions=partitions, **options)
        atexit.register(self.close)


class StreamLoader(torch_stream.StreamLoader):
    """`worker.torch.stream_loader.StreamLoader` in this process's session, unless another is given."""

    def __init__(
        self, dataset: Iterable[Any], batch_size: int = 1, *, session: Session | None = None, **options: Any
    ) -> None:
        super().__init__(dataset, batch_size, session=session or current_session(), **options)


def weighted(
    loss: Tensor,
    samples: int | None = None,
    reduction: Literal["mean", "sum"] = "mean",
    *,
    ranks: int | None = None,
    session: Session | None = None,
) -> Tensor:
    """`worker.torch.ddp.weighted` in this process's session, unless another is given."""
    session = session or current_session()
    return torch_ddp.weighted(loss, session, samples=samples, reduction=reduction, ranks=ranks)


class SyncBatchNorm(torch_batchnorm.SyncBatchNorm):
    """`worker.torch.batch_norm.SyncBatchNorm` in this process's session, unless another is given."""

    def __init__(self, num_features: int, *, session: Session | None = None, **options: Any) -> None:
        super().__init__(num_features, session=session or current_session(), **options)


def convert_sync_batchnorm(
    model: nn.Module, process_group: ProcessGroup | None = None, *, session: Session | None = None
) -> nn.Module:
    """`worker.torch.batch_norm.convert_sync_batchnorm` in this process's session, unless another is given."""
    return torch_batchnorm.convert_sync_batchnorm(model, session or current_session(), process_group)


def average_statistics(
    model: nn.Module, process_group: ProcessGroup | None = None, *, session: Session | None = None
) -> None:
    """`worker.torch.batch_norm.average_statistics` in this process's session, unless another is given."""
    torch_batchnorm.average_statistics(model, session or current_session(), process_group)
