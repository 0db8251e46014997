"""Measure what share of a spot market's nodes a job on Ray makes use of.

Nodes on this machine join and are lost as those of the trace did, in less time. Each has a worker, whose
samples take a made-up time, so that their capacity is known. The services are on a node that stays. The
status is 1 where the parameters at the end are not those of one process.

Example:
  evenpace lab bench spot --trace p3-events.csv --nodes 4 --minutes 10 --json spot.json
"""

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from rich.console import Console

from evenpace.local.terminal import make_progress, make_table
from idl.errors import InvalidRequestError, UnavailableError
from idl.settings import Checked, Setting
from lab.bench.ray_job import PLACE, STEADY, RayCluster, RayJob, Silence, difference
from lab.chaos.reference_training import SPEC
from lab.ray_nodes import RayNode
from lab.simulations.capacity_files import read_events


@dataclass(frozen=True)
class SpotConfig(Checked):
    """The trace, and how it is replayed (InvalidRequestError: a value is out of its range)."""

    # CSV file of a market, with the columns time_s, event ("join" or "loss") and node.
    trace: Annotated[
        Path,
        Setting(
            "Nodes that join and are lost: a CSV file of time_s, event, node.", exists=True, folder=False
        ),
    ]
    nodes: Annotated[
        int, Setting("At most: of the trace, nodes beyond these are left out.", least=1, most=16)
    ] = 4
    minutes: Annotated[float, Setting("In which the trace is replayed.", above=0, below=inf)] = 10.0
    notice: Annotated[
        float,
        Setting("Seconds before a loss at which it is announced; 0 for none.", least=0, below=inf),
    ] = 10.0
    silence: Silence = None


_CALM_SECONDS, _CALM_STEPS = 20.0, 10  # before the trace, at least, in which nothing changes
_CHECKPOINT_EVERY = 20  # versions
_PER_SAMPLE = 0.04  # seconds that a sample takes on each node; batches are of 96
_SHARDS = 1  # of the parameter server


@dataclass(frozen=True)
class Event:
    """What happens to a node, `time` seconds after the begin; a notice announces its loss."""

    time: float
    kind: Literal["join", "loss", "notice"]
    node: str


def read_trace(path: Path) -> list[Event]:
    """Read a trace; its columns are time_s, event and node."""
    try:
        read = read_events(path)
    except ValueError as error:
        raise InvalidRequestError(str(error)) from error
    events = [Event(seconds, "join" if joins else "loss", node) for seconds, node, joins in read]
    events.sort(key=lambda event: event.time)
    if not events or events[-1].time <= 0:
        raise InvalidRequestError(f"{path}: it must have events after its begin, at 0 s")
    return events


def take_nodes(events: Iterable[Event], most: int) -> list[Event]:
    """Return the events of as many nodes as may be there at once; those that join beyond are left out."""
    there: set[str] = set()
    taken = []
    for event in events:
        if event.kind == "join" and len(there) < most and event.node not in there:
            there.add(event.node)
        elif event.kind == "loss" and event.node in there:
            there.remove(event.node)
        else:
            continue
        taken.append(event)
    return taken


@dataclass
class _Life:
    """A node of the trace, from its start on; times are of the monotonic clock."""

    node: RayNode
    up: float
    down: float = inf


class _Market:
    """Nodes that join and are lost, each without waiting for others; a context manager.

    At its end it waits for what is under way, so that no node is started after the cluster's end.
    """

    def __init__(self, cluster: RayCluster) -> None:
        self._cluster = cluster
        self._threads = ThreadPoolExecutor(8, thread_name_prefix="market")
        self._joining: dict[str, Future[_Life]] = {}
        self._rest: list[Future[None]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._threads.shutdown(cancel_futures=True)

    def join(self, name: str) -> None:
        def start() -> _Life:
            node = self._cluster.add(PLACE)
            return _Life(node, time.monotonic())

        self._joining[name] = self._threads.submit(start)

    def announce(self, name: str, seconds: float) -> None:
        """Tell Ray that a node will be lost after some seconds."""
        joining, end = self._joining[name], time.monotonic() + seconds

        def announce() -> None:
            life = joining.result()
            try:
                life.node.announce_end(max(1.0, end - time.monotonic()))
            except UnavailableError:
                if life.down == inf:
                    raise  # else the node has gone meanwhile

        self._rest.append(self._threads.submit(announce))

    def lose(self, name: str) -> None:
        joining = self._joining[name]

        def kill() -> None:
            life = joining.result()
            life.down = time.monotonic()
            self._cluster.kill(life.node)

        self._rest.append(self._threads.submit(kill))

    def lives(self) -> list[_Life]:
        """Wait until all that was begun is done, and return the nodes' lives."""
        for future in self._rest:
            future.result()
        self._rest = []
        return [future.result() for future in self._joining.values()]


def run(config: SpotConfig, console: Console) -> dict[str, Any]:
    """Replay a trace while a job trains, and print and return what its nodes' capacity became."""
    trace = read_trace(config.trace)
    events = take_nodes(trace, config.nodes)
    if events[0].time > 0:
        raise InvalidRequestError(f"{config.trace}: no node is there at its begin, at 0 s")
    pace = 60 * config.minutes / trace[-1].time  # seconds for each of the trace's
    with RayCluster(config.silence) as cluster, _Market(cluster) as market:
        cluster.add(STEADY, 1 + _SHARDS)
        job = RayJob(
            cluster,
            f"1:{config.nodes}",
            _SHARDS,
            _CHECKPOINT_EVERY,
            per_sample=_PER_SAMPLE,
        )
        first = [event for event in events if event.time == 0]
        for event in first:
            market.join(event.node)
        market.lives()
        job.submit()
        job.all_train([f"w{number}" for number in range(len(first))])
        calm = _Window(job)
        long_enough = calm.lasted(_CALM_SECONDS)
        job.until("nothing changes", lambda: long_enough() and len(calm.reached) > _CALM_STEPS)
        calm_share = calm.rate / (len(first) / _PER_SAMPLE)
        window = _Window(job)
        with make_progress(console) as bar:
            task = bar.add_task("what happens", total=len(events) - len(first))
            for event in _compressed(events[len(first) :], pace, config.notice):
                job.until("the next event is due", window.lasted(event.time))
                if event.kind == "notice":
                    market.announce(event.node, config.notice)
                    continue
                (market.join if event.kind == "join" else market.lose)(event.node)
                bar.advance(task)
            job.until("the replay ends", window.lasted(60 * config.minutes))
            window.end()
        lives = market.lives()
        if all(life.down < inf for life in lives):
            cluster.add(PLACE)
        iterations, error = job.finish()
    capacity = sum(max(0.0, min(life.down, window.ended) - max(life.up, window.began)) for life in lives)
    useful = window.useful * _PER_SAMPLE
    lost = capacity * calm_share - useful
    changes = len(events) - len(first)
    figures = asdict(config) | {
        "trace": str(config.trace),
        "joins": sum(event.kind == "join" for event in events) - len(first),
        "losses": sum(event.kind == "loss" for event in events),
        "seconds": window.seconds,
        "node_seconds": capacity,
        "share": useful / capacity,
        "calm_share": calm_share,
        "lost_per_change_s": lost / max(1, changes),
        "share_at_own_pace": calm_share - lost * pace / capacity,
        "computed_twice": window.computed - window.useful,
        "iterations": iterations,
        **difference(error),
    }
    _show(console, figures)
    return figures


def _compressed(events: Iterable[Event], pace: float, notice: float) -> list[Event]:
    """Return events at their times in a replay, in order, with a notice before each loss."""
    joined: dict[str, float] = {}
    due = []
    for event in events:
        now = event.time * pace
        due.append(replace(event, time=now))
        if event.kind == "join":
            joined[event.node] = now
        elif notice:
            due.append(Event(max(joined.get(event.node, 0.0), now - notice), "notice", event.node))
    return sorted(due, key=lambda event: event.time)  # of one time, a node's join comes first


class _Window:
    """A time in which a job's samples are counted."""

    def __init__(self, job: RayJob) -> None:
        self._progress = job.progress
        self._first = job.progress.version
        self._computed = job.progress.computed_samples
        self.began = self.ended = time.monotonic()
        self.reached = [(self.began, self._first)]  # when which version was
        self.computed = 0  # samples, those that were computed again included; known at the end

    def lasted(self, seconds: float) -> Callable[[], bool]:
        """Return whether the window has lasted so long, as a condition that notes the job's progress."""

        def has() -> bool:
            if self._progress.version != self.reached[-1][1]:
                self.reached.append((time.monotonic(), self._progress.version))
            return time.monotonic() >= self.began + seconds

        return has

    def end(self) -> None:
        self.ended = time.monotonic()
        self.computed = self._progress.computed_samples - self._computed

    @property
    def seconds(self) -> float:
        """Return for how long it has lasted until now, or its end."""
        return (self.ended if self.ended > self.began else time.monotonic()) - self.began

    @property
    def useful(self) -> int:
        """Return the samples of the iterations that were completed in it, and that hold."""
        return _samples(self._first, self.reached[-1][1])

    @property
    def rate(self) -> float:
        """Return the samples per second from the first iteration's end in it to the last one's."""
        (begun, first), (ended, last) = self.reached[1], self.reached[-1]
        return _samples(first, last) / (ended - begun)


def _samples(first: int, last: int) -> int:
    """Return the samples of all iterations from one on up to another, which is left out."""
    return sum(SPEC.batch(iteration)[2] for iteration in range(first, last))


def _show(console: Console, figures: dict[str, Any]) -> None:
    notice = f"announced {figures['notice']:g} s before" if figures["notice"] else "without a notice"
    title = (
        f"{figures['joins']} joins and {figures['losses']} losses in {figures['minutes']:g} minutes, {notice}"
    )
    table = make_table(title, "share of the nodes' capacity that became useful samples", "%")
    table.add_row("while nothing changed", f"{100 * figures['calm_share']:.1f}")
    table.add_row("in the replay", f"{100 * figures['share']:.1f}")
    table.add_row("with these costs at the trace's own pace", f"{100 * figures['share_at_own_pace']:.1f}")
    console.print(table)
    console.print(
        f"each change cost {figures['lost_per_change_s']:.1f} seconds of one node; "
        f"{figures['computed_twice']:,} samples were computed more than once; after "
        f"{figures['iterations']:,} iterations, the parameters differ by {figures['error']:.1e} from those "
        "of one process"
    )
