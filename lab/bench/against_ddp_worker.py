"""One worker of `evenpace lab bench train`: the same training by stock DDP, by all-reduce, or at the servers.

It writes when each of its iterations ended and what CPU time it took, and rank 0 the parameters after each
epoch.
"""

import argparse
import atexit
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import evenpace
from evenpace.launch import pin
from idl.plan import JobSpec, permutation
from lab.script_options import read_options
from lab.workloads import common
from lab.workloads.by_name import Training
from worker.parent import end_with_parent
from worker.resources.cpu_limits import limit_cpu
from worker.torch.ddp import balance
from worker.torch.optimizer import distribute


class EvenSlices:
    """Batch sampler for torch: this rank's equal part of each batch, as `DistributedSampler` gives it.

    The order of the samples is that of evenpace's loader, so that all trainings see the same batches.
    """

    def __init__(self, spec: JobSpec, rank: int, ranks: int) -> None:
        self._spec = spec
        self._rank = rank
        self._ranks = ranks
        self._epoch = 0

    def __iter__(self) -> Iterator[list[int]]:
        size, part = self._spec.total_batch_size, self._spec.total_batch_size // self._ranks
        order = permutation(self._spec, self._epoch)
        self._epoch += 1
        for start in range(0, self._spec.iterations_per_epoch * size, size):
            yield order[start + self._rank * part : start + (self._rank + 1) * part].tolist()

    def __len__(self) -> int:
        return self._spec.iterations_per_epoch


def main() -> None:
    """Train, and write the measurements."""
    options = read_options()
    end_with_parent(options.parent)
    pin(options.cpu)
    torch.set_num_threads(1)
    training = Training("digits", tuple(options.workload))
    workload = training.make(training.options())
    common.warm_up(workload)
    module, optimizer, dataset = workload.model, workload.optimizer, workload.train_set
    began = 0.0

    def begin() -> None:
        """Set the CPU limit and start the clock, once all workers are ready."""
        nonlocal began
        atexit.register(limit_cpu(os.getpid(), options.share, options.name, options.limit_kind).close)
        began = time.monotonic()

    if options.mode != "ps":
        distributed.init_process_group(
            "gloo", init_method=f"file://{options.store}", rank=options.rank, world_size=options.ranks
        )
    model = module
    if options.mode != "ps":
        model = DistributedDataParallel(module, bucket_cap_mb=options.bucket_mb)
    loader: Any
    if options.mode == "ddp":
        spec = JobSpec(len(dataset), options.batch_size, options.seed, shuffle=True, drop_last=True)
        sampler = EvenSlices(spec, options.rank, options.ranks)
        loader = DataLoader(cast(Dataset[Any], dataset), batch_sampler=sampler)
        distributed.barrier()
        begin()
    else:
        session = evenpace.connect(options.manager, options.ps, worker=options.name)
        session.before_training.append(begin)
        loader = evenpace.torch.DataLoader(
            dataset, options.batch_size, shuffle=True, seed=options.seed, drop_last=True
        )
        if isinstance(model, DistributedDataParallel):
            balance(model, loader)
        else:
            distribute(optimizer, loader, module)

    ends, sizes, cpu, snapshots = _train(model, loader, optimizer, workload.loss, options)
    seconds = np.array(ends) - began
    np.savez(options.out, ends=seconds, sizes=sizes, cpu=cpu, snapshots=np.array(snapshots))
    if options.mode != "ps":
        distributed.barrier()
        del model  # so that nothing holds the process group, whose threads end with it
        distributed.destroy_process_group()


def _train(
    model: nn.Module,
    loader: Any,
    optimizer: torch.optim.Optimizer,
    loss_function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    options: argparse.Namespace,
) -> tuple[list[float], list[int], list[float], list[NDArray[Any]]]:
    """Train; return iterations' ends, batch sizes and CPU times, and rank 0's parameters after each epoch."""
    ends, sizes, cpu, snapshots = [], [], [], []
    for _ in range(options.epochs):
        since = time.process_time()
        for batch, targets in loader:
            optimizer.zero_grad()
            loss: torch.Tensor = loss_function(model(batch), targets)
            loss.backward()
            optimizer.step()
            ends.append(time.monotonic())
            sizes.append(len(targets))
            now = time.process_time()
            cpu.append(now - since)
            since = now
        if not options.rank:
            snapshots.append(nn.utils.parameters_to_vector(model.parameters()).detach().numpy().copy())
    return ends, sizes, cpu, snapshots


if __name__ == "__main__":
    main()
