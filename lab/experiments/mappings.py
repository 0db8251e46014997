"""Mappings of a batch's micro-batches onto workers, and what VirtualFlow measured on its own. Pure values."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["joins", "leaves", "dies", "changes"]


@dataclass(frozen=True)
class Event:
    """Event in the middle of a training."""

    after: float  # part of the iterations that are done before, from 0 to 1
    # A worker joins; leaves, as an operator asks; dies by SIGKILL; or the most that it takes changes.
    kind: Kind
    worker: int  # number of the worker
    share: float = 1.0  # for a change, the part of the whole batch that it takes from then on at most


@dataclass(frozen=True)
class Mapping:
    """Mapping of a batch's micro-batches onto workers."""

    # For each worker that there is at the start, the part of the whole batch that it takes at most.
    shares: tuple[float, ...]
    events: tuple[Event, ...] = ()  # what happens meanwhile, in order
    all_reduce: bool = False  # whether ranks all-reduce gradients, in place of a parameter server
    micro_batches: bool = True  # whether there are any; without, workers compute their parts as a whole

    @property
    def workers(self) -> int:
        """Return the number of workers at the start."""
        return len(self.shares)


def _even(workers: int) -> tuple[float, ...]:
    return (1.0,) * workers


_UNEVEN = {2: (1.0, 0.25), 4: (1.0, 0.25, 0.125, 0.125), 8: (1.0, 0.25, *(1 / 12,) * 6)}
_CHANGES = tuple(
    Event(after, "changes", worker, share)
    for after, worker, share in ((0.2, 1, 0.15), (0.4, 2, 0.5), (0.6, 1, 0.5), (0.75, 3, 0.05))
)

MAPPINGS: dict[str, Mapping] = {
    **{str(workers): Mapping(_even(workers)) for workers in (1, 2, 4, 8)},
    **{f"{workers}-uneven": Mapping(shares) for workers, shares in _UNEVEN.items()},
    "changes": Mapping(_UNEVEN[4], _CHANGES),
    "joins": Mapping(_even(1), tuple(Event(0.2 * n, "joins", n) for n in (1, 2, 3))),
    "leaves": Mapping(_even(4), (Event(0.25, "leaves", 3), Event(0.5, "leaves", 1))),
    "dies": Mapping(_even(4), (Event(0.25, "dies", 3), Event(0.5, "dies", 1))),
    "churn": Mapping(
        _UNEVEN[2],
        (
            Event(0.1, "joins", 2),
            Event(0.25, "changes", 1, 0.5),
            Event(0.35, "dies", 1),
            Event(0.5, "joins", 3),
            Event(0.7, "leaves", 2),
        ),
    ),
    **{f"{workers}-all-reduce": Mapping(_even(workers), all_reduce=True) for workers in (2, 8)},
    "4-uneven-all-reduce": Mapping(_UNEVEN[4], all_reduce=True),
    "changes-all-reduce": Mapping(_UNEVEN[4], _CHANGES, all_reduce=True),
    **{f"{workers}-without": Mapping(_even(workers), micro_batches=False) for workers in (2, 4, 8)},
}
"""Mappings by name; those called `without` have no micro-batches, and show what these are for."""

VIRTUALFLOW = {
    "Table 1, ResNet-50 on ImageNet": {
        "VirtualFlow": {1: 75.92, 2: 75.96, 4: 75.99, 8: 75.83, 16: 75.68},
        "without (TF*)": {1: 69.25, 2: 67.30, 4: 70.68, 8: 73.04},
    },
    "Table 2, BERT-BASE on GLUE": {
        "QNLI": {1: 90.86, 2: 91.05, 4: 90.86, 8: 90.88},
        "SST-2": {1: 92.07, 2: 92.35, 4: 92.20, 8: 91.86},
        "CoLA": {1: 83.01, 2: 84.08, 4: 83.50, 8: 82.45},
    },
}
"""Final top-1 accuracies in percent by the number of GPUs, as VirtualFlow's tables have them."""
