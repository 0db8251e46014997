"""What a PyTorch training script uses: `DataLoader`, and what carries its gradients to the other workers.

With a parameter server that is `distribute`; with `torch.distributed`, `balance` or `weighted`. What does not
fit into memory goes through `within_memory`.
"""

from worker.torch.batch_norm import SyncBatchNorm, average_statistics, convert_sync_batchnorm
from worker.torch.ddp import balance, weighted
from worker.torch.loader import DataLoader
from worker.torch.memory_watch import MemoryExhaustedError, watch_memory, within_memory
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
    "watch_memory",
    "weighted",
    "within_memory",
]
