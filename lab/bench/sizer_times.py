"""Time how long the manager takes to plan an iteration, by the sizer that chooses its size.

The job is that of the manager, and all workers take part in it without a wire, in one process; their times
and the norms of their gradients are made up.

Example:
  evenpace lab bench sizers --workers 1000 --json sizers.json
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import mean, median
from typing import Annotated, Any

from rich.console import Console

from batchsize_manager.job.config import JobConfig
from batchsize_manager.job.job import Job
from batchsize_manager.job.progress import IterationProgress
from batchsize_manager.policies import make_job_policy
from batchsize_manager.sizers import Sizes, Sizing
from evenpace.local.terminal import make_table
from idl.bounds import Bounds
from idl.gradient_norms import GradientNorms, StepNorms
from idl.plan import Assignment, JobSpec
from idl.records import Report
from idl.settings import Checked, Setting

_SIZERS = ("fixed", "similarity", "goodput")
_POLICIES = ("proportional", "learned")
_SAMPLES = 16  # of each worker, to begin with
_FIXED, _PER_SAMPLE = 0.05, 0.002  # seconds of an iteration of the fastest worker
_SCALE = 8.0  # times the first size, of the gradient noise
_WARM_UP = 20  # iterations that do not count


@dataclass(frozen=True)
class SizerTimesConfig(Checked):
    """Workers and iterations (InvalidRequestError: a value is out of its range)."""

    workers: Annotated[int, Setting("Of the job.", least=1, most=5000)] = 1000
    iterations: Annotated[int, Setting("That are planned, after a warm-up.", least=10)] = 100


def run(config: SizerTimesConfig, console: Console) -> dict[str, Any]:
    """Time plans with each sizer and each policy, and print and return the CPU seconds."""
    workers, iterations = config.workers, config.iterations
    times = {
        policy: {name: _times(policy, name, workers, iterations) for name in _SIZERS} for policy in _POLICIES
    }
    figures = {"workers": workers, "iterations": iterations, "times": times}
    title = f"CPU time to plan an iteration of {workers:,} workers, ms"
    table = make_table(title, "policy, sizer", "median", "mean", "longest", "changes")
    for policy, by_name in times.items():
        for name, its in by_name.items():
            each = (f"{its[key] * 1e3:.2f}" for key in ("median_s", "mean_s", "longest_s"))
            table.add_row(f"{policy}, {name}", *each, f"{its['changes']:,}")
    console.print(table)
    return figures


def _times(policy: str, sizer: str, workers: int, iterations: int) -> dict[str, Any]:
    """Train a made-up job, and return figures of the CPU seconds of `Planner.plan_next`."""
    size = _SAMPLES * workers
    names = [f"w{number}" for number in range(workers)]
    config = JobConfig(workers=workers, sizing=Sizing(sizer, Sizes(size, 16 * size)))
    job = Job(JobSpec(10**9, size), config, make_job_policy(policy))
    taken: list[float] = []
    plan_next = job.planner.plan_next

    def timed(iteration: int, attempt: int, now: float) -> IterationProgress:
        began = time.process_time()
        progress = plan_next(iteration, attempt, now)
        taken.append(time.process_time() - began)
        return progress

    job.planner.plan_next = timed  # type: ignore[method-assign]
    now, changes, last = 0.0, 0, size
    for name in names:
        job.join(name, name, Bounds(), now)
    for iteration in range(_WARM_UP + iterations):
        parts: dict[str, Assignment] = {}
        for name in names:
            part = job.next_assignment(name, name)
            assert part is not None
            parts[name] = part
        total = parts[names[0]].total
        changes, last = changes + (total != last), total
        seconds = {
            name: (1 + number % 4) * (_FIXED + _PER_SAMPLE * parts[name].count)
            for number, name in enumerate(names)
        }
        now += max(seconds.values())
        norms = _norms(iteration, parts, _SCALE * size)
        for name, part in parts.items():
            job.report(name, name, Report(part.iteration, seconds[name], norms=norms), now)
        job.take_effects()
    taken = taken[_WARM_UP:]
    return {
        "median_s": median(taken),
        "mean_s": mean(taken),
        "longest_s": max(taken),
        "changes": changes,
    }


def _norms(iteration: int, parts: Mapping[str, Assignment], scale: float) -> StepNorms:
    """Return the norms that gradients have on average, where |G|² is 1 and tr(Σ) the noise scale."""
    counts = [part.count for part in parts.values() if part.count]
    contributions = [(count, 1.0 + scale / count) for count in counts]
    return StepNorms(iteration, GradientNorms.of(contributions, 1.0 + scale / sum(counts)))
