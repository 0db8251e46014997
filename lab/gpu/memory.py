"""Memory that really runs out: batches that are done in pieces, limits that are learned, figures compared."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from idl.bounds import Bounds
from idl.plan import Assignment, JobSpec
from lab.gpu.setup import Setup, need_gpu
from lab.models.resnet import ResNet32
from worker.exchanges.all_reduce import AllReduce
from worker.resources.nvml import Device
from worker.torch.memory_watch import read_device, within_memory

_SHARE = 2 * 2**30  # bytes that the allocator is confined to
_BATCH = 4096  # samples of the first plan, which do not fit into that in float64
_ITERATIONS = 12
_MOST_DIFFERENCE = 1e-9  # of a gradient, relative to the largest element


class _Session:
    """What a manager and a session do, as far as memory is concerned: a told limit holds at once."""

    def __init__(self) -> None:
        self.config = SimpleNamespace(bounds=Bounds(maximum=_BATCH))
        self.training = SimpleNamespace(spec=JobSpec(10**9, _BATCH), micro_batch=None)
        self.assignment = Assignment(0, 0, 0, _BATCH, _BATCH)
        self.exchange = AllReduce()
        self.limits = self.meter = self
        self.memory_usage: Any = None
        self.told: list[int] = []

    def log_fields(self) -> dict[str, object]:
        return {}

    def lower_maximum(self, samples: int) -> None:
        self.told.append(samples)
        self.assignment = Assignment(0, 0, 0, min(samples, self.assignment.count), _BATCH)


def run(setup: Setup) -> dict[str, Any]:
    """Train in a confined allocator, with batches that are too large at first."""
    need_gpu(setup)
    total = torch.cuda.mem_get_info(setup.device)[1]
    torch.cuda.set_per_process_memory_fraction(min(1.0, _SHARE / total), setup.device)
    torch.manual_seed(0)
    model = ResNet32(norm="group").double().to(setup.device)
    session = _Session()
    sizes: list[int] = []

    def forward_backward(inputs: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.cross_entropy(model(inputs.to(setup.device)), classes.to(setup.device))
        loss.backward()
        sizes.append(len(inputs))
        return loss

    step = within_memory(forward_backward, model, SimpleNamespace(session=session))  # type: ignore[arg-type]
    rows = []
    for iteration in range(_ITERATIONS):
        count = session.assignment.count if iteration < _ITERATIONS // 2 else _varied(session, iteration)
        session.assignment = Assignment(iteration, 0, 0, count, _BATCH)
        inputs = torch.randn(count, 3, 32, 32, dtype=torch.float64)
        classes = torch.randint(10, (count,))
        sizes.clear()
        model.zero_grad()
        step(inputs, classes)
        share = session.memory_usage()
        rows.append({"batch_size": count, "pieces": list(sizes), "limit": step.limit, "share": share})
        if setup.left < 0:
            break
    difference = _difference(model, inputs, classes, setup)
    if difference > _MOST_DIFFERENCE:
        raise AssertionError(f"gradients differ by {difference}, relative to the largest")
    if step.limit is None:
        raise AssertionError(f"{_BATCH} samples fitted into {_SHARE} bytes, so that nothing was shown")
    return {
        "confined_to_bytes": _SHARE,
        "iterations": rows,
        "limits_told": session.told,
        "gradient_difference": difference,
        "device": vars(read_device(setup.device)),
        "nvml": _nvml(setup),
    }


def _varied(session: _Session, iteration: int) -> int:
    """Other sizes below the limit, for a line to be laid through the peaks."""
    return max(1, min(session.told, default=_BATCH) * (4 + iteration % 4) // 8)


def _difference(model: nn.Module, inputs: torch.Tensor, classes: torch.Tensor, setup: Setup) -> float:
    """Between the last gradient and one that is summed up from small pieces by hand."""
    parameters = list(model.parameters())
    gradient = torch.cat([p.grad.flatten() for p in parameters if p.grad is not None])
    model.zero_grad()
    for part, targets in zip(inputs.split(64), classes.split(64), strict=True):
        loss = nn.functional.cross_entropy(
            model(part.to(setup.device)), targets.to(setup.device), reduction="sum"
        )
        (loss / len(inputs)).backward()
    expected = torch.cat([p.grad.flatten() for p in parameters if p.grad is not None])
    return float((gradient - expected).abs().max() / expected.abs().max())


def _nvml(setup: Setup) -> dict[str, int] | str:
    """NVML's view of the device; or why there is none."""
    try:
        return vars(Device(setup.device.index or 0).memory())
    except LookupError as error:
        return str(error)
