"""Make a trace from machines' usage: how fast workers would be beside those who used them.

FILE has the columns vm,step,cpu_percent,mem_percent and may be gzipped. A worker's speed is in proportion to
the CPU that is free, and falls by up to a half as memory in use passes 90%. Usage is interpolated between
steps. A worker goes through several machines, one after the other, where one has not steps enough.

Example:
  evenpace lab trace usage vm_usage.csv.gz --workers 8 --out trace.csv
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from rich.console import Console

from idl.settings import Setting
from lab.fields import parse_names
from lab.traces import (
    FASTEST,
    SLOWEST,
    MadeTraceConfig,
    Series,
    Trace,
    Usage,
    read_usage,
    response,
    write_made,
)
from predictors import Array


@dataclass(frozen=True, kw_only=True)
class UsageTraceConfig(MadeTraceConfig):
    """The workers of a trace from usage."""

    workers: Annotated[int | None, Setting("[default: all that --vms is enough for, or 4]", least=1)] = None
    machines: Annotated[
        tuple[str, ...],
        Setting(
            "Machines to use.  [default: they are drawn]", name="vms", metavar="NAME,...", read=parse_names
        ),
    ] = ()
    iterations_per_step: Annotated[int, Setting("That fit between two steps.", least=1)] = 10


@dataclass(frozen=True, kw_only=True)
class UsageTraceFiles(UsageTraceConfig):
    """The same, and the file of usage."""

    usage: Annotated[Path, Setting("", metavar="FILE", positional=True)]


def run(config: UsageTraceFiles, console: Console) -> dict[str, int]:
    """Make the trace, and write it."""
    return write_made(usage_trace(read_usage(config.usage), config), config.out, console)


def usage_trace(usage: Usage, config: UsageTraceConfig) -> Trace:
    """Make a trace of workers on machines that others use as `usage` says.

    An iteration's usage is that of its beginning, interpolated linearly between the machine's steps, and
    stays so until its end. Speeds follow from it by `response`. Machines are dealt to the workers in order,
    each worker getting as many as it takes to have steps enough, one after the other.
    """
    for i, machine in enumerate(config.machines):
        if machine not in usage or machine in config.machines[:i]:
            raise ValueError(f"machine {machine!r}: there is none, or it is named twice")
    workers, iterations = config.workers, config.iterations
    if workers is None and not config.machines:
        workers = 4
    names = list(config.machines) or np.random.default_rng(config.seed).permutation(list(usage)).tolist()
    steps = math.ceil((iterations - 1) / config.iterations_per_step) + 1
    dealt: list[tuple[Array, Array]] = []  # each worker's CPU and memory usage, (steps,)
    while (workers is None and names) or (workers is not None and len(dealt) < workers):
        chain: list[tuple[Array, Array]] = []
        while sum(len(cpu) for cpu, _ in chain) < steps:
            if not names:
                raise ValueError(
                    f"the machines are enough for {len(dealt)} workers: each worker needs {steps} steps"
                )
            chain.append(usage[names.pop(0)])
        cpu_parts, memory_parts = zip(*chain, strict=True)
        dealt.append((np.concatenate(cpu_parts)[:steps], np.concatenate(memory_parts)[:steps]))
    if config.machines and names:
        raise ValueError(f"{workers} workers need fewer machines: {', '.join(names)} would not be used")
    trace = {}
    times = np.arange(iterations) / config.iterations_per_step  # in steps
    for i, (cpu_steps, memory_steps) in enumerate(dealt):
        random = np.random.default_rng([config.seed, i])
        cpu = np.interp(times, np.arange(steps), cpu_steps)
        memory = np.interp(times, np.arange(steps), memory_steps)
        speeds = random.uniform(SLOWEST, FASTEST) * response(cpu, memory)
        trace[f"worker-{i}"] = Series(
            np.arange(iterations),
            speeds * config.perturbation.draw(iterations, random),
            cpu,
            memory,
            speeds * config.perturbation.mean,
        )
    return trace
