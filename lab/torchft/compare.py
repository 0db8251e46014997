"""The same training and kills with torchft 0.2.0 and with evenpace: time, and samples lost or repeated.

Workers train with DistributedDataParallel on gloo, on one machine. One is killed every few seconds, in turn,
once all are there, and started again after a second. See README.md.
"""

import argparse
import contextlib
import itertools
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from evenpace.local.cluster import LocalCluster
from lab.chaos.supervisor import Supervisor
from lab.script_options import as_argument
from lab.torchft import training as script
from lab.waiting import wait_until
from rpc.processes import Process

AWAY_SECONDS = 1.0  # after which a killed worker is started again

WAYS = ("torchft", "evenpace")


class _Workers:
    """Workers of one job, which are started again after they were killed."""

    def __init__(
        self, folder: Path, command: Callable[[str], list[str]], options: dict[str, Any], count: int
    ) -> None:
        self._folder, self._command, self._options = folder, command, options
        processes = [
            Process(f"w{number}", partial(self._line, number), folder / f"w{number}.log")
            for number in range(count)
        ]
        self._supervisor = Supervisor({process.name: process for process in processes}, random.Random(0))
        self._supervisor.wanted = set(self._supervisor.processes)
        self.poll = self._supervisor.poll

    def kill(self, number: int) -> None:
        self._supervisor.kill(f"w{number}", AWAY_SECONDS)

    def lines(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for file in self._folder.glob("*.jsonl"):
            found += map(json.loads, file.read_text().rpartition("\n")[0].splitlines())
        return found

    def are_back(self) -> bool:
        """Return whether all workers run, and have taken a step since they were started last."""
        staying = self._supervisor.staying("worker")
        files = [self._file(process.name, process.starts - 1) for process in staying]
        begun = [file for file in files if file.exists() and "\n" in file.read_text()]
        return len(begun) == len(self._supervisor.processes)

    def steps(self) -> int:
        return max((line["step"] + 1 for line in self.lines()), default=0)

    def stop(self) -> None:
        for process in self._supervisor.processes.values():
            process.end(0.0)

    def _file(self, name: str, start: int) -> Path:
        return self._folder / f"{name}-{start}.jsonl"

    def _line(self, number: int, start: int) -> list[str]:
        name = f"w{number}"
        options = as_argument(number=number, out=self._file(name, start), **self._options)
        return [*self._command(name), options]


@contextlib.contextmanager
def _job(way: str, folder: Path, options: argparse.Namespace) -> Iterator[_Workers]:
    given = {"way": way, **{name: getattr(options, name) for name in ("workers", "steps", "batch_size")}}
    with contextlib.ExitStack() as stack:
        if way == "torchft":
            from torchft.coordination import LighthouseServer

            lighthouse = LighthouseServer(bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=1000)
            stack.callback(lighthouse.shutdown)
            given["lighthouse"] = lighthouse.address()

            def command(name: str) -> list[str]:
                return [sys.executable, script.__file__]
        else:
            cluster = stack.enter_context(
                LocalCluster(folder / "services", workers=options.workers, shards=0, policy="even")
            )

            def command(name: str) -> list[str]:
                words = ["--manager", str(cluster.manager), "--name", name]
                return [sys.executable, "-m", "evenpace", "worker", *words, script.__file__]

        workers = _Workers(folder, command, given, options.workers)
        stack.callback(workers.stop)
        yield workers


def _trained(way: str, options: argparse.Namespace, kills: int) -> dict[str, Any]:
    """Train once, with so many kills; return seconds, pauses, and what was used of the data."""
    with tempfile.TemporaryDirectory() as name, _job(way, Path(name), options) as workers:
        killed, due = 0, None

        def look() -> None:
            nonlocal killed, due
            workers.poll()
            if due is None and workers.steps() > options.warm_up:
                due = time.monotonic() + options.every
            if due is not None and killed < kills and time.monotonic() > due and workers.are_back():
                workers.kill(killed % options.workers)
                killed, due = killed + 1, due + options.every

        wait_until(
            f"{way} to take {options.steps} steps",
            lambda: workers.steps() >= options.steps,
            look,
            tick=0.02,
            seconds=600.0,
        )
        return _summary(workers.lines(), options) | {"kills": killed}


def _summary(lines: list[dict[str, Any]], options: argparse.Namespace) -> dict[str, Any]:
    """Say what time the steps took, and how often samples were used in as many epochs as they make."""
    last: dict[int, int] = {}  # attempts by step
    for line in lines:
        last[line["step"]] = max(last.get(line["step"], 0), line["attempt"])
    epochs = options.steps // script.BATCHES
    used = Counter[int]()
    ends: dict[int, float] = {}
    for line in lines:
        step = line["step"]
        if line["attempt"] == last[step]:
            ends[step] = min(ends.get(step, line["at"]), line["at"])
            used.update(line["samples"] if step < epochs * script.BATCHES else ())
    samples = range(script.BATCHES * options.batch_size)
    due = epochs * len(samples)
    times = [ends[step] for step in sorted(ends)]
    gaps = [after - before for before, after in itertools.pairwise(times)]
    return {
        "seconds": times[-1] - times[options.warm_up],
        "step_s": statistics.median(gaps),
        "longest_gap_s": max(gaps[options.warm_up :]),
        "too_rarely": sum(max(0, epochs - used[sample]) for sample in samples) / due,
        "too_often": sum(max(0, used[sample] - epochs) for sample in samples) / due,
    }


def main() -> None:
    """Run both, without kills and with them, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=48, help="Of all workers.")
    parser.add_argument("--steps", type=int, default=960, help="Of which 32 are an epoch.")
    parser.add_argument("--warm-up", type=int, default=64, help="Steps before the first that counts.")
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--every", type=float, default=5.0, help="Seconds from one kill to the next.")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    figures: dict[str, Any] = {"load": os.getloadavg()[0]}
    for kills in (0, options.kills):
        for way in WAYS:
            its = figures[f"{way}, {kills} kills"] = _trained(way, options, kills)
            sys.stdout.write(
                f"{way}, {its['kills']} kills: {its['seconds']:.1f} s for {options.steps - options.warm_up} "
                f"steps ({its['step_s'] * 1e3:.0f} ms each, longest pause {its['longest_gap_s']:.1f} s); of "
                f"all uses of samples, {its['too_rarely']:.1%} are lacking, {its['too_often']:.1%} too many\n"
            )
            sys.stdout.flush()
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
