"""One worker of `compare.py`: the same training with torchft, or with evenpace.

Each writes a line for each step that it has taken: the step's number, and the samples that it has used.
"""

import argparse
import json
import os
import time
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._C._distributed_c10d import TCPStore
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from lab.script_options import read_options

BATCHES = 32  # of an epoch
WIDTH, LAYERS = 256, 8
SEED = 3


def main() -> None:
    """Train until the job has taken so many steps."""
    options = read_options()
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    samples = BATCHES * options.batch_size
    data = TensorDataset(torch.randn(samples, WIDTH), torch.randn(samples, WIDTH), torch.arange(samples))
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(LAYERS)]
    module = nn.Sequential(*layers)
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-4)
    train = _by_torchft if options.way == "torchft" else _by_evenpace
    with Path(options.out).open("a", buffering=1) as out:
        for line in train(options, data, module, optimizer):
            out.write(json.dumps(line | {"at": time.monotonic()}) + "\n")


def _by_torchft(
    options: argparse.Namespace, data: TensorDataset, module: nn.Module, optimizer: torch.optim.Optimizer
) -> Iterator[dict[str, Any]]:
    """Train as torchft's own example for DDP does, with a sampler of its own; yield the steps taken."""
    from torchft import DistributedDataParallel as FaultTolerant
    from torchft import DistributedSampler, Manager, Optimizer, ProcessGroupGloo

    def load(state: dict[str, Any]) -> None:
        module.load_state_dict(state["module"])
        optimizer.load_state_dict(state["optimizer"])

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=10)),
        load_state_dict=load,
        state_dict=lambda: {"module": module.state_dict(), "optimizer": optimizer.state_dict()},
        min_replica_size=1,
        timeout=timedelta(seconds=10),
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        lighthouse_addr=options.lighthouse,
        replica_id=f"worker_{options.number}",
        hostname="127.0.0.1",
    )
    model, steps = FaultTolerant(manager, module), Optimizer(manager, optimizer)
    sampler = DistributedSampler(
        data,
        replica_rank=options.number,
        num_replica_groups=options.workers,
        group_rank=0,
        num_replicas=1,
        shuffle=True,
        seed=SEED,
    )
    loader = DataLoader(data, options.batch_size // options.workers, sampler=sampler)
    epoch = 0
    while manager.current_step() < options.steps:
        sampler.set_epoch(epoch)
        for inputs, targets, indices in loader:
            steps.zero_grad()
            nn.functional.mse_loss(model(inputs), targets).backward()
            takes_part = manager.is_participating()
            before = manager.current_step()
            steps.step()
            if manager.current_step() > before and takes_part:
                yield {"step": before, "attempt": 0, "samples": indices.tolist()}
            if manager.current_step() >= options.steps:
                break
        epoch += 1
    os._exit(0)  # its threads would wait for the others


def _by_evenpace(
    options: argparse.Namespace, data: TensorDataset, module: nn.Module, optimizer: torch.optim.Optimizer
) -> Iterator[dict[str, Any]]:
    """Train in a group that the manager forms; yield the steps taken."""
    import evenpace

    torch.distributed.init_process_group("gloo")
    model = DistributedDataParallel(module)
    loader = evenpace.torch.DataLoader(data, options.batch_size, shuffle=True, seed=SEED, drop_last=True)
    evenpace.torch.balance(model, loader, optimizer)
    session = evenpace.session()
    for inputs, targets, indices in _batches(loader, session):
        now = session.assignment
        assert now is not None
        if now.iteration >= options.steps:
            break
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        # One that did not count has gradients no more, and comes again.
        if next(module.parameters()).grad is not None:
            yield {"step": now.iteration, "attempt": now.attempt, "samples": indices[: now.count].tolist()}


def _batches(loader: Iterable[Any], session: Any) -> Iterator[Any]:
    while session.released is None:
        yield from loader


if __name__ == "__main__":
    main()
