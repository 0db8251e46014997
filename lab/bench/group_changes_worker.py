"""One worker of `evenpace lab bench groups`, in a group of the manager's or a static one.

It trains until it is released or stopped, and writes a line when each iteration has ended: its number, the
attempt, the times by the monotonic clock and of its CPU, and what the change to its group took.
"""

import argparse
import itertools
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import evenpace
from idl.plan import JobSpec
from lab.bench.against_ddp_worker import EvenSlices
from lab.script_options import read_options
from worker.exchanges.all_reduce import AllReduce
from worker.parent import end_with_parent

WIDTH = 512  # of a layer
BLOCK = 11  # iterations in a turn, of which the first has the wait for it
_BATCHES = 64  # of an epoch
_WAIT_SECONDS = 0.02  # between two looks for a turn
_SEED = 3


def make_model(parameters: int) -> nn.Sequential:
    """Make linear layers of equal width, four at least, with about as many parameters together."""
    width = min(WIDTH, max(1, math.isqrt(parameters // 4)))
    layers = max(4, round(parameters / (width * width + width)))
    parts = [nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(layers)]
    return nn.Sequential(*itertools.chain.from_iterable(parts))


def main() -> None:
    """Train."""
    options = read_options(parent=None, store=None, turns=None)
    if options.parent is not None:
        end_with_parent(options.parent)
    torch.set_num_threads(1)
    torch.manual_seed(1)
    module = make_model(options.parameters)
    width = next(module.parameters()).shape[1]
    samples = _BATCHES * options.batch_size
    data = TensorDataset(torch.randn(samples, width), torch.randn(samples, width))
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-4)
    if options.store is None:
        distributed.init_process_group("gloo")
    else:
        place = f"file://{options.store}"
        distributed.init_process_group("gloo", init_method=place, rank=options.rank, world_size=options.ranks)
    model = DistributedDataParallel(module)
    numbered = _stock(data, options) if options.store else _formed(data, options, model, optimizer)
    with Path(options.out).open("a", buffering=1) as out:
        for line, (inputs, targets) in numbered:
            if options.turns is not None and line["iteration"] % BLOCK == 0:
                turn = Path(f"{options.turns}-{line['iteration'] // BLOCK}")
                while not turn.exists():
                    time.sleep(_WAIT_SECONDS)
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
            out.write(json.dumps(line | {"ended": time.monotonic(), "cpu": time.process_time()}) + "\n")


def _stock(data: TensorDataset, options: argparse.Namespace) -> Iterator[tuple[dict[str, Any], Any]]:
    """Yield batches of stock DDP, in the order that evenpace's loader has, each with its number."""
    spec = JobSpec(len(data), options.batch_size, _SEED, shuffle=True, drop_last=True)
    loader = DataLoader(data, batch_sampler=EvenSlices(spec, options.rank, options.ranks))
    for number, batch in enumerate(itertools.chain.from_iterable(itertools.repeat(loader))):
        yield {"iteration": number, "attempt": 0, "times": {}}, batch


def _formed(
    data: TensorDataset,
    options: argparse.Namespace,
    model: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
) -> Iterator[tuple[dict[str, Any], Any]]:
    """Yield batches of a job whose groups the manager forms, each with what is known of its iteration."""
    loader = evenpace.torch.DataLoader(data, options.batch_size, shuffle=True, seed=_SEED, drop_last=True)
    evenpace.torch.balance(model, loader, optimizer)
    session = evenpace.session()
    exchange = AllReduce.of(session.exchange, "the session has a parameter server")
    while session.released is None:
        for batch in loader:
            now = session.assignment
            assert now is not None
            times = {} if exchange.group_times is None else vars(exchange.group_times)
            yield {"iteration": now.iteration, "attempt": now.attempt, "times": times}, batch


if __name__ == "__main__":
    main()
