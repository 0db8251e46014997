"""The interface for PyTorch scripts: data loaders, and ways to combine the workers' gradients.

With a parameter server, `distribute` combines gradients; with `torch.distributed`, `balance` or `weighted`,
where `scale_lr` lets learning rates follow the batch.
`within_memory` splits batches that do not fit into memory.
"""

from worker.torch.batch_norm import SyncBatchNorm, average_statistics, convert_sync_batchnorm
from worker.torch.ddp import balance, weighted
from worker.torch.learning_rates import scale_lr
from worker.torch.loader import DataLoader
from worker.torch.memory_watch import MemoryExhaustedError, watch_memory, within_memory
from worker.torch.micro_batches import micro_batches
from worker.torch.optimizer import distribute
from worker.torch.partitioned_loader import PartitionedLoader
from worker.torch.stream_loader import StreamLoader

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
    "micro_batches",
    "scale_lr",
    "watch_memory",
    "weighted",
    "within_memory",
]
