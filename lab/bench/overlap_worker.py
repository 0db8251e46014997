"""Worker of `evenpace lab bench overlap`: layers that take as long as they are told, each with parameters.

It goes through a number of iterations for each line of its standard input, and writes their median time.
With stock DDP, no part of evenpace trains.
"""

import statistics
import sys
import time
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import evenpace
from lab.script_options import read_options

_WIDTH = 720  # of a layer, whose gradient has some 2 MiB


class _Slow(torch.autograd.Function):
    """The identity, which takes some seconds forward, and twice as many backward."""

    @staticmethod
    def forward(context: Any, inputs: torch.Tensor, seconds: list[float]) -> torch.Tensor:
        context.seconds = seconds
        time.sleep(seconds[0])
        return inputs.view_as(inputs)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        time.sleep(2 * context.seconds[0])
        return gradients[0], None


class Layer(nn.Module):
    """A linear layer that computes for as long as `seconds` says."""

    def __init__(self, seconds: list[float]) -> None:
        super().__init__()
        self._linear = nn.Linear(_WIDTH, _WIDTH)
        self._seconds = seconds

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the layer's outputs, of the inputs' shape."""
        slow: torch.Tensor = _Slow.apply(self._linear(inputs), self._seconds)  # type: ignore[no-untyped-call]
        return torch.tanh(slow)


def main() -> None:
    """Train as the command line and the lines of standard input say."""
    options = read_options(stock=None, push_dtype=None)
    torch.set_num_threads(1)
    torch.manual_seed(1)
    seconds = [0.0]
    model: nn.Module = nn.Sequential(*(Layer(seconds) for _ in range(options.layers)))
    data = TensorDataset(torch.randn(1000 * options.workers, _WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader: Iterable[Any]
    if options.stock:
        torch.distributed.init_process_group(
            "gloo", init_method=options.stock, rank=options.rank, world_size=options.workers
        )
        model = nn.parallel.DistributedDataParallel(model)
        loader = DataLoader(data, sampler=DistributedSampler(data))
    else:
        name, push_dtype = f"w{options.rank}", options.push_dtype
        evenpace.connect(options.manager, options.ps, worker=name, push_dtype=push_dtype)
        loader = evenpace.torch.DataLoader(data, batch_size=options.workers)
        evenpace.torch.distribute(optimizer, loader, model, bucket_cap_mb=options.bucket_mb)
    left, times = 0, []
    began = time.perf_counter()
    for (inputs,) in loader:
        now = time.perf_counter()
        times.append(now - began)
        began = now
        if not left:
            sys.stdout.write(f"{statistics.median(times[-max(1, len(times) // 2) :])}\n")
            sys.stdout.flush()
            line = sys.stdin.readline().split()
            if not line:
                return
            left, seconds[0], times = int(line[0]), float(line[1]) / (3 * options.layers), []
            began = time.perf_counter()
        left -= 1
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()


if __name__ == "__main__":
    main()
