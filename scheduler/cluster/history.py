"""The record of a cluster: who had which devices when, and why, in a file that outlives the cluster.

It has a line of JSON for each change of a job's state or devices, and for each change of the nodes that are
there. Jobs are told apart by name and time of submission, so that one may have the name of an earlier one.
"""

import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, TypeAlias

from rpc.tokens import write_secret
from scheduler.allocation import Placement, devices
from scheduler.cluster.events import (
    Cancelled,
    Ended,
    Event,
    Held,
    How,
    NodeLost,
    Recovered,
    Submitted,
    WorkerGone,
)
from scheduler.cluster.jobs import LiveJob, State
from scheduler.nodes import Cluster, Node

FILE = "history.jsonl"
PAUSED = "paused by its user"

_MOST = 20_000  # lines, some megabytes; half of them are left out once there are more

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class JobLine:
    """What a job is and has from a moment on."""

    time: float  # seconds since 1970, as all times here
    job: str
    submitted: float
    state: State
    held: bool  # by its user
    devices: dict[str, int]  # by node
    attempt: int
    why: str
    how: How | None = None  # it has ended
    owner: str = ""  # as of `JobRequest`


@dataclass(frozen=True, slots=True)
class NodesLine:
    """The nodes that are there from a moment on: none where the scheduler is not."""

    time: float
    nodes: dict[str, tuple[str, int]]  # address and number of devices, by name


Line: TypeAlias = JobLine | NodesLine


class Span(NamedTuple):
    """A time in which a job has the same devices."""

    start: float
    end: float
    placement: Placement


@dataclass
class Life:
    """What happened to a job until `now`."""

    job: str
    submitted: float
    now: float  # its end, or that of the record
    owner: str = ""
    state: State = "waiting"
    held: bool = False
    since: float = 0.0  # it is in this state, and held or not
    why: str = ""
    how: How | None = None  # it has ended
    started: float | None = None  # it first trained
    suspensions: int = 0
    spans: list[Span] = field(default_factory=list)

    @property
    def ended(self) -> float | None:
        """Time of its end; None before."""
        return self.now if self.state == "ended" else None

    @property
    def lasted(self) -> float:
        """Seconds from submission to end, or until now."""
        return self.now - self.submitted

    @property
    def waited(self) -> float:
        """Seconds without devices, before the start and later."""
        return self.lasted - sum(span.end - span.start for span in self.spans)

    @property
    def device_seconds(self) -> float:
        """Seconds of devices that it had."""
        return sum((span.end - span.start) * devices(span.placement) for span in self.spans)


@dataclass(frozen=True)
class Account:
    """What a record says in all, until `now`."""

    lives: list[Life]  # of the jobs, in the order of submission
    hosts: dict[str, str]  # addresses of all nodes that were ever there, by name
    cluster: Cluster  # those nodes
    began: float
    now: float
    capacity: float  # seconds of devices that were there

    @property
    def utilisation(self) -> float | None:
        """The share of the devices' time that jobs had; None where there were none."""
        return sum(life.device_seconds for life in self.lives) / self.capacity if self.capacity else None

    @property
    def completions(self) -> list[float]:
        """The seconds from submission to end of the jobs that are done."""
        return [life.lasted for life in self.lives if life.how == "done"]

    @property
    def makespan(self) -> float:
        """Seconds from the first submission to the last end, or until now where a job has not ended."""
        first = min((life.submitted for life in self.lives), default=0.0)
        return max((life.now for life in self.lives), default=first) - first


def account(lines: Sequence[Line], now: float) -> Account:
    """Return what lines say, the oldest first; jobs that have not ended go on until `now`.

    What a job has on a node ends with the node.
    """
    lives: dict[tuple[str, float], Life] = {}
    had: dict[tuple[str, float], tuple[float, Placement]] = {}  # by job: since when, and what
    there: Mapping[str, tuple[str, int]] = {}
    known: dict[str, tuple[str, int]] = {}
    began = at = lines[0].time if lines else now
    capacity = 0.0

    def has(job: tuple[str, float], placement: Placement) -> None:
        since, before = had.get(job, (at, ()))
        if placement != before:
            if before and since < at:
                lives[job].spans.append(Span(since, at, before))
            had[job] = at, placement

    def pass_to(time: float) -> float:
        nonlocal capacity
        later = max(at, time)  # the clock may have been set back
        capacity += (later - at) * sum(count for _, count in there.values())
        return later

    for line in lines:
        at = pass_to(line.time)
        if isinstance(line, NodesLine):
            there = line.nodes
            for name, (host, count) in there.items():
                known[name] = host, max(count, known.get(name, (host, 0))[1])
            for job, (_, placement) in list(had.items()):
                has(job, tuple(part for part in placement if part[0] in there))
            continue
        job = line.job, line.submitted
        life = lives.setdefault(job, Life(line.job, min(line.submitted, at), at, line.owner))
        if not life.since or (line.state, line.held) != (life.state, life.held):
            life.suspensions += line.state == "suspended" != life.state
            life.state, life.held, life.since, life.why = line.state, line.held, at, line.why
        if line.state == "running" and life.started is None:
            life.started = at
        life.now, life.how = at, line.how
        has(job, tuple((node, count) for node, count in line.devices.items() if node in there))
    at = pass_to(now)
    for job, life in lives.items():
        has(job, ())
        life.now = life.now if life.state == "ended" else at
    nodes = tuple(Node(name, "", count) for name, (_, count) in known.items())
    hosts = {name: host for name, (host, _) in known.items()}
    return Account(list(lives.values()), hosts, Cluster(nodes), began, at, capacity)


def read(file: Path) -> list[Line]:
    """Return the lines of a record; the last is left out while it is being written.

    Raises:
        OSError: It cannot be read.
        ValueError: It is not a record.
    """
    lines: list[Line] = []
    for number, text in enumerate(file.read_text().split("\n")[:-1], 1):
        try:
            values = json.loads(text)
            nodes = values.get("nodes")
            if nodes is None:
                # What is not a number fails here.
                sum([values["time"], values["submitted"], *values["devices"].values()])
                lines.append(JobLine(**values))
            else:
                its = {name: (str(host), int(count)) for name, (host, count) in nodes.items()}
                lines.append(NodesLine(0.0 + values["time"], its))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{file}: line {number} is not of the record of a cluster: {error}") from error
    return lines


def newer_half(lines: Sequence[Line]) -> list[Line]:
    """Return the newer half of the lines, with what was there before them at their beginning."""
    older, newer = lines[: len(lines) // 2], lines[len(lines) // 2 :]
    last = {line.job if isinstance(line, JobLine) else None: line for line in older}
    kept = [
        replace(line, time=newer[0].time)
        for line in last.values()
        if isinstance(line, NodesLine) or line.state != "ended"
    ]
    return [*sorted(kept, key=lambda line: isinstance(line, JobLine)), *newer]


class History:
    """The record of a live cluster, which goes on with that of an earlier process.

    It is kept in memory, too, so that a disk that fails for a while costs nothing but a record that lags.
    """

    def __init__(self, file: Path) -> None:
        self.lines: list[Line] = []
        self._file = file
        self._written = 0  # lines that the file has; none where it is to be written anew
        self._tried = 0
        try:
            self.lines = read(file)
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            log.warning("the cluster's record begins anew: %s", error)
        self._nodes = next((line.nodes for line in self.lines[::-1] if isinstance(line, NodesLine)), {})
        self._jobs = {line.job: line for line in self.lines if isinstance(line, JobLine)}

    def interrupt(self, time: float) -> None:
        """Note that from a time on, of which the next line may be much later, nothing was there."""
        if self._nodes:
            self.lines.append(NodesLine(time, {}))
        self._nodes, self._jobs = {}, {}

    def note(
        self,
        time: float,
        jobs: Mapping[str, LiveJob],
        nodes: dict[str, tuple[str, int]],
        why: Mapping[str, str],
    ) -> list[JobLine]:
        """Note what has changed, and return the lines about jobs.

        Args:
            time: When it has.
            jobs: All jobs, by name.
            nodes: The address and the number of devices of each node, by name.
            why: The reason if a job has changed, by its name.
        """
        if nodes != self._nodes:
            self.lines.append(NodesLine(time, nodes))
            self._nodes = nodes
        before, self._jobs, changed = self._jobs, {}, []
        for name, job in jobs.items():
            has = dict(Counter(lease.node for lease in job.leases.values()))
            how = job.how if job.state == "ended" else None
            owner = job.request.owner
            line = JobLine(
                time, name, job.submitted, job.state, job.held, has, job.attempt, why[name], how, owner
            )
            last = before.get(name)
            if last is None and job.state == "ended":  # the record of it has been left out
                continue
            if last is None or replace(line, time=last.time, why=last.why) != last:
                changed.append(line)
                last = line
            self._jobs[name] = last
        self.lines += changed
        return changed

    def write(self) -> None:
        """Write what is new; where that fails, all is written with what comes next."""
        if len(self.lines) == self._tried:
            return
        if len(self.lines) > _MOST:
            self.lines, self._written = newer_half(self.lines), 0
        self._tried = len(self.lines)
        text = "".join(json.dumps(asdict(line)) + "\n" for line in self.lines[self._written :])
        try:
            if self._written:
                with self._file.open("a") as stream:
                    stream.write(text)
            else:
                write_secret(self._file, text)
            self._written = self._tried
        except OSError as error:
            self._written = 0
            log.warning("the cluster's record cannot be written: %s", error)


def reasons(event: Event, jobs: Mapping[str, LiveJob], hosts: Mapping[str, str]) -> dict[str, str]:
    """Return why an event will change the jobs that it is about; others change as the policy has decided.

    Args:
        event: What happens.
        jobs: All jobs by name, as they were before.
        hosts: Addresses of nodes.
    """
    match event:
        case Submitted(request):
            return {request.name: "submitted"}
        case Held(job, held):
            return {job: PAUSED if held else "resumed by its user"}
        case Cancelled(job):
            return {job: "cancelled by its user"}
        case Ended(job, _, _, reason):
            return {job: in_one_line(reason)}
        case WorkerGone(job, _, worker) if job in jobs and worker in jobs[job].kept:
            return {job: f"{worker} has ended"}
        case NodeLost(node):
            on_it = [
                name for name, job in jobs.items() if any(its.node == node for its in job.leases.values())
            ]
            return dict.fromkeys(on_it, f"node {hosts.get(node, node[:8])} is lost")
        case Recovered():
            return dict.fromkeys(jobs, "the scheduler was started again")
    return {}


def in_one_line(reason: str) -> str:
    """Return the first and the last line of why a job has ended, which may have a traceback between them."""
    lines = reason.splitlines()
    return reason if len(lines) < 2 else f"{lines[0]} {lines[-1]}"
