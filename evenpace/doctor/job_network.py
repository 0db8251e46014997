"""A check of a manager's jobs: those whose bottleneck is the network, and what would help each of them."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from batchsize_manager.client import ManagerClient
from batchsize_manager.sizers import MEASURING
from evenpace.doctor.findings import Finding, warning
from evenpace.overview.job_view import JobView
from idl.exchange import PARAMETER_SERVER

_LATEST = 100  # iterations of a job that are looked at
_MOST = 100  # jobs that are


def bound_by_network(client: ManagerClient, summary: Any, about: str) -> Iterator[Finding]:
    """Find out whether communication is the bottleneck of most workers of a job in its latest iterations.

    Args:
        summary: `JobSummary` of the wire.
        about: The finding's subject.
    """
    view, first, overlaps = JobView(), max(0, summary.iteration - _LATEST), False
    while first < summary.iteration:
        _, found = client.history(summary.job, first, _LATEST)
        if not found:
            break
        view.add(found)
        first = found[-1].iteration + 1
        overlaps = bool(np.isfinite(found[-1].column("backward_time")).all())
    if text := view.figures(limit=0).transfers_text:
        helpful = "; ".join(advice(summary, overlaps=overlaps))
        yield warning(about, f"job {summary.job!r} is {text}", f"what would help: {helpful}")


def jobs_bound_by_network(client: ManagerClient, jobs: Any, about: str) -> Iterator[Finding]:
    """Look at a manager's first jobs that have not ended; see `bound_by_network`."""
    running = [summary for summary in jobs if summary.state not in ("ended", "failed")]
    for summary in running[:_MOST]:
        yield from bound_by_network(client, summary, about)


def advice(summary: Any, *, overlaps: bool) -> Iterator[str]:
    """Yield what would help a job whose bottleneck is the network.

    Args:
        summary: `JobSummary` of the wire.
        overlaps: Whether all workers have measured their transfers during the backward pass.
    """
    name, in_bsp = summary.job, summary.mode == "bsp"
    if summary.exchange == PARAMETER_SERVER:
        if in_bsp and not overlaps:
            yield (
                "with PyTorch on CPUs, gradients that are pushed during the backward pass, as they are "
                "unless sums are exact, or the script changes gradients after it, as by clipping; the "
                "worker's log says so"
            )
        if summary.spec.micro_batch is None:
            yield (
                "for models without running statistics, pushes of half as many bytes, which round gradients: "
                "`evenpace worker --push-dtype bfloat16`"
            )
        yield "more shards, each on a machine of its own: another `evenpace ps`, which workers name by `--ps`"
    else:
        yield (
            "with DistributedDataParallel, buckets of less than its 25 MiB, so that reductions begin earlier "
            "and less is left after the backward pass: `bucket_cap_mb=4`"
        )
    if overlaps and summary.policy != "overlap":
        yield f"a split that knows of transfers: `evenpace job policy {name} overlap`"
    if summary.sizer == "fixed":
        yield (
            f"a larger batch, as the transfers stay the same: `evenpace job batch-size {name} SAMPLES`, or "
            "`evenpace manager --scale-batch`, with which it grows with the number of workers"
        )
    elif summary.sizer in MEASURING:
        yield (
            "a larger batch, as the transfers stay the same: "
            f"`evenpace job sizer {name} {summary.sizer} --batch-size LEAST:MOST`"
        )
