"""Run many jobs with many workers each against one manager.

Each worker has a connection and reports each iteration; what it would compute is made up. Measured are the
barrier rounds, from the last report sent to the last answer received, and what the manager takes of the
machine. At the end, one job, member and connection too many are tried.

Example:
  evenpace lab bench load --jobs 10 --workers 100 --minutes 10 --json load.json
"""

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from evenpace.local.cluster import service
from evenpace.local.terminal import make_table
from idl.errors import InvalidRequestError, UnavailableError
from lab.bench import load_limits
from lab.bench.connected_workers import allow_files
from lab.bench.load_generators import SILENCE_SECONDS, Generators, LoadConfig
from lab.bench.load_rounds import measured
from lab.bench.watch import Watch, summary
from rpc.address import Address


def run(config: LoadConfig, console: Console) -> dict[str, Any]:
    """Put a manager under load, and print and return the figures."""
    needed = config.connections + load_limits.SPARE_CONNECTIONS + 100
    allowed = allow_files(needed)
    if allowed < needed:
        raise InvalidRequestError(
            f"{config.connections} connections need {needed} open files, but this machine allows a process "
            f"{allowed}: raise its hard limit (`ulimit -Hn`), or ask for fewer workers"
        )
    figures: dict[str, Any] = {
        "config": asdict(config) | {"generators": config.generators},
        "machine": {"cpus": os.cpu_count()},
    }
    options = (
        *("--workers", str(config.workers)),
        *("--max-jobs", str(config.jobs), "--max-members", str(config.workers)),
        *("--max-connections", str(config.connections + load_limits.SPARE_CONNECTIONS)),
        *config.manager_options,
    )
    with service("manager", *options) as manager:
        began = time.monotonic()
        with Generators(config, manager.address) as generators:
            console.print(f"{config.connections} workers joined in {time.monotonic() - began:.1f} s")
            with Watch(manager.pid) as watch:
                started = time.monotonic()
                for left in _progress(console, config.seconds, generators, watch):
                    generators.listen(min(1.0, left))
                elapsed = time.monotonic() - started
                finished = {job: list(rounds) for job, rounds in generators.rounds.finished.items()}
            figures |= measured(finished, elapsed)
            figures["manager"] = summary(watch.samples)
            figures["refusals"] = _refused(config, manager.address, generators)
            generators.finish()
            figures["errors"] = dict(generators.errors)
    _show(console, figures)
    return figures


def _progress(console: Console, seconds: float, generators: Generators, watch: Watch) -> Iterator[float]:
    """Yield the seconds left, again and again, and show the progress meanwhile."""
    text = TextColumn("{task.description}")
    with Progress(text, TimeElapsedColumn(), console=console) as bar:
        task = bar.add_task("", total=None)
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            rss = watch.samples[-1].rss / 2**20 if watch.samples else 0.0
            bar.update(
                task,
                description=f"{generators.rounds.count()} rounds, manager {rss:.0f} MiB, "
                f"{sum(generators.errors.values())} errors, {left:.0f} s left",
            )
            yield left


def _refused(config: LoadConfig, address: Address, generators: Generators) -> list[load_limits.Refusal]:
    """Exceed the manager's limits while the workers go on; return what was refused."""
    refusals: list[load_limits.Refusal] = []
    trying = threading.Thread(
        target=lambda: refusals.extend(load_limits.try_limits(address, config.names[0], config.workers))
    )
    trying.start()
    while trying.is_alive():
        generators.listen(0.2)
    before = generators.rounds.slowest()
    until = time.monotonic() + SILENCE_SECONDS
    while generators.rounds.slowest() < before + 2:
        if time.monotonic() > until:
            raise UnavailableError("a job did not go on after the manager had refused others")
        generators.listen(0.2)
    return refusals


def _show(console: Console, figures: dict[str, Any]) -> None:
    config, memory = figures["config"], figures["manager"]["rss_mib"]
    title = f"{config['jobs']} jobs with {config['workers']} workers each, {figures['seconds']:.0f} s"
    table = make_table(title, "rounds of", "rounds", "p50 ms", "p99 ms", "p99.9 ms", "p99 / p50")
    rows = {**(figures["by_job"] if len(figures["by_job"]) <= 20 else {}), "all": figures["round_ms"]}
    for name, latency in rows.items():
        numbers = (f"{latency[key]:.1f}" for key in ("p50", "p99", "p99.9"))
        table.add_row(name, str(latency["rounds"]), *numbers, f"{latency['p99_to_p50']:.2f}")
    console.print(table)
    console.print(
        f"{figures['rounds_per_second']:.1f} rounds/s; the manager used {figures['manager']['cores']:.2f} "
        f"cores, {memory['settled']:.0f} MiB after {memory['settled_after_s']:.0f} s and {memory['end']:.0f} "
        f"at the end ({memory['slope_per_minute']:+.2f} a minute), {figures['manager']['files']['most']} "
        f"file descriptors; {sum(figures['errors'].values())} errors"
    )
    for refusal in figures["refusals"]:
        console.print(f"{refusal['what']}: {refusal['error'] or 'NOT REFUSED'}: {refusal['message']}")
