"""What all parts of the benchmark share: where they run, how long they may take, and how time is measured."""

import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from statistics import median
from typing import TypeVar

import torch

T = TypeVar("T")


@dataclass(frozen=True)
class Setup:
    """What a part is given."""

    device: torch.device  # where to run
    quick: bool  # whether a look is enough: small models, few batches
    until: float  # when to be done, on the monotonic clock

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return self.device.type == "cuda"

    @property
    def left(self) -> float:
        """Seconds until the part must be done."""
        return self.until - time.monotonic()

    def now(self) -> float:
        """Seconds by the clock, once the GPU has done what it was asked for."""
        if self.on_gpu:
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def forget(self) -> None:
        """Give memory that is not in use back to the GPU."""
        if self.on_gpu:
            torch.cuda.empty_cache()

    def shared(self, items: Collection[T]) -> Iterator[tuple[T, "Setup"]]:
        """Yield items, each with a setup that has an even share of the time left by then."""
        for done, item in enumerate(items):
            share = self.left / (len(items) - done)
            yield item, replace(self, until=time.monotonic() + share)


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """How long some work takes, in seconds: by events on a GPU, by the clock elsewhere."""
    if device.type != "cuda":
        begin = time.perf_counter()
        work()
        return time.perf_counter() - begin
    begun, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begun.record()
    work()
    ended.record()
    ended.synchronize()
    return float(begun.elapsed_time(ended)) / 1e3


def typical_seconds(work: Callable[[], object], setup: Setup, most: float = 2.0) -> float:
    """The median over ten repetitions, after two that do not count; fewer, if they take `most` seconds."""
    if setup.quick:
        return seconds(work, setup.device)
    for _ in range(2):
        work()
    taken: list[float] = []
    while len(taken) < 10 and (len(taken) < 3 or sum(taken) < most):
        taken.append(seconds(work, setup.device))
    return median(taken)
