"""Step time against batch size, up to what fits into memory, and how well that limit is foreseen."""

from collections.abc import Callable
from typing import Any

import torch

from lab.gpu.models import Workload, workloads
from lab.gpu.setup import Setup, typical_seconds
from worker.resources.device_memory import largest_batch
from worker.torch.memory_watch import is_out_of_memory, read_device

_SMALLEST, _QUICK_LARGEST = 2, 3  # samples; batch normalisation wants more than one
_LONGEST_STEP = 3.0  # seconds, beyond which a model is left


def run(setup: Setup) -> dict[str, Any]:
    """Each model's curve, with an even share of the time."""
    result = {}
    for (name, workload), part in setup.shared(workloads(setup.quick).items()):
        result[name] = _curve(workload, part)
        setup.forget()
    return result


def _curve(workload: Workload, setup: Setup) -> dict[str, Any]:
    """Sizes double, with one between; then the limit is closed in by halves."""
    step = workload.step(setup.device)
    rows: list[dict[str, float]] = []
    peaks: dict[int, int] = {}
    ended = "out of time"
    fits, fails = 0, None
    size = _SMALLEST
    while setup.left > 0:
        try:
            rows.append(_measure(workload, step, size, setup, peaks))
        except RuntimeError as error:
            fails, ended = size, "memory" if is_out_of_memory(error) else str(error).partition("\n")[0]
        if fails is not None:
            break
        fits = size
        if setup.quick and size >= _QUICK_LARGEST:
            ended = "quick"
            break
        if rows[-1]["step_time_s"] > _LONGEST_STEP:
            ended = "long steps"
            break
        size = size * 3 // 2 if size & (size - 1) == 0 else 1 << size.bit_length()
    result: dict[str, Any] = {"ended_by": ended, "rows": rows}
    if setup.on_gpu and ended == "memory" and fails is not None:
        setup.forget()
        room = read_device(setup.device).room
        foreseen = largest_batch({n: peak for n, peak in peaks.items() if n <= fits // 2}, room)
        fits, fails = _close_in(workload, step, fits, fails, setup)
        result |= {"largest_that_fits": fits, "smallest_that_fails": fails}
        result |= {"foreseen_from_half_of_it": foreseen}
    return result


def _measure(
    workload: Workload, step: Callable[..., None], size: int, setup: Setup, peaks: dict[int, int]
) -> dict[str, float]:
    if setup.on_gpu:
        torch.cuda.reset_peak_memory_stats(setup.device)
    batch = workload.batch(size, setup.device)
    row = {"batch_size": size, "step_time_s": typical_seconds(lambda: step(*batch), setup)}
    if setup.on_gpu:
        peaks[size] = torch.cuda.max_memory_allocated(setup.device)
        row["peak_bytes"] = peaks[size]
    return row


def _close_in(
    workload: Workload, step: Callable[..., None], fits: int, fails: int, setup: Setup
) -> tuple[int, int]:
    """Narrow the limit down to 2%, while there is time."""
    while fails - fits > max(1, fits // 50) and setup.left > 0:
        middle = (fits + fails) // 2
        try:
            step(*workload.batch(middle, setup.device))
            torch.cuda.synchronize(setup.device)
            fits = middle
        except RuntimeError as error:
            if not is_out_of_memory(error):
                break
            fails = middle
        setup.forget()
    return fits, fails
