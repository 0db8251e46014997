"""PyTorch: a data loader, and two ways to combine the workers' gradients.

- `DataLoader` gives each worker its part of every batch. Every script has it, or `StreamLoader` where the
  samples come in a stream, or `PartitionedLoader` where each worker has only a part of the data.
- `distribute(optimizer, loader, model)` is for an ordinary script: a parameter server (`evenpace ps`) sums
  the gradients and takes the optimiser's step, and each worker gets the parameters.
- `balance(model, loader, optimizer)` is for a script with `DistributedDataParallel`: gradients meet in its
  all-reduce as before, each with its weight. `weighted(loss)` does the same without DDP, as with FSDP.

Beside these, `micro_batches` makes the result independent of the number of workers, `within_memory` splits
batches that do not fit, `scale_lr` lets learning rates follow the batch's size, and `convert_sync_batchnorm`
and `average_statistics` are for batch normalisation without a parameter server.

Mind three limits:

- The loss is a mean over the samples, or over what the loader's `weight=` says, such as tokens. One that is a
  sum is weighted wrongly, but by `weighted`, which takes one.
- With `distribute`, a gradient that the script clips is this worker's own, not the whole batch's.
- Each batch has one step. Gradients can be accumulated over pieces of a batch, not over several batches.
"""

from evenpace._extras import needing

with needing("torch"):
    from worker.torch.batch_norm import SyncBatchNorm, average_statistics, convert_sync_batchnorm
    from worker.torch.ddp import balance, weighted
    from worker.torch.learning_rates import scale_lr
    from worker.torch.loader import DataLoader
    from worker.torch.losses import mean
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
    "mean",
    "micro_batches",
    "scale_lr",
    "watch_memory",
    "weighted",
    "within_memory",
]
