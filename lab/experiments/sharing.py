"""Figure 10 of VirtualFlow, live: jobs with priorities that share a real cluster, with and without resizing.

A Ray cluster of four nodes, each a device with its own limit of CPU time, is shared by `evenpace cluster`. As
in section 6.4.1, a job of each priority comes after the other: on handwritten digits (weight 1, all four
devices), MNIST (weight 5, two) and CIFAR-10 (weight 10, four); without resizing, the last one comes while the
second runs. First each is profiled with the first node's limit, and has the cluster to itself, from which its
step times on each node are known, and what its parameters must be. Then all come, under strict priorities,
and under elastic weighted fair sharing, during which a node of the largest job is killed, and another comes.
With --jobs two, jobs of weights 1 and 2 share by weights.

What was measured stands beside what the live cluster's machine does in virtual time, with these times, and
with the times of starts, joins, leaves and suspensions that were seen. The status is 1 where a job's
parameters are not those that it has by itself, or where an iteration is not the batch that it has there.

Example:
  evenpace lab experiment sharing --data DIR --out sharing --json sharing.json
"""

import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Annotated, Any

import torch
from rich.console import Console

from batchsize_manager.policies.step_times import StepTimes
from batchsize_manager.storage.state_reader import open_state
from evenpace.local.fields import parse_shares
from evenpace.local.profile_config import ProfileConfig
from evenpace.local.profiling import profile
from evenpace.reports.cluster_page import write_cluster_page
from evenpace.reports.run_source import StoredRun
from idl.errors import UnavailableError
from idl.records import IterationRecord
from idl.settings import Checked, Setting
from lab.bench.ray_job import PLACE, STEADY, RayCluster
from lab.data import load
from lab.experiments import train_workload
from lab.experiments.mapping_reference import state_vector
from lab.fields import Folder
from lab.ray_nodes import RayNode
from lab.report import Columns, options_of, table_of
from lab.simulator.delayed import Delays, NodeChange, SharedJob, simulate_delayed
from scheduler.cluster import history
from scheduler.cluster.events import JobRequest
from scheduler.cluster.history import Account
from scheduler.nodes import Node
from scheduler.policies import POLICIES
from scheduler.ray.cluster_settings import FOLDER
from scheduler.ray.submission import MANAGER

STATIC, ELASTIC = "priority", "weighted_fair_sharing"

_SERVICES = 8  # of all jobs at once
_TOLERANCE = 1e-9  # relative difference of parameters in double precision
_TICK_SECONDS = 0.1  # between two looks at what the scheduler has kept
_PATIENCE_SECONDS = 1200.0  # for all jobs to end
_PROFILED_FROM = 8  # samples; up to a whole batch
_PROFILED_STEPS = 10  # of each size
_SETTLED = 5  # iterations after a change of the workers, which are not measured


@dataclass(frozen=True)
class _Plan:
    """A job of the experiment."""

    name: str
    weight: float
    devices: int
    at: float  # seconds after the first job is submitted
    data: str  # as `lab.data.load` takes it, within the folder of --data
    batch: int
    iterations: int


_TWO = (
    _Plan("one", 1.0, 4, 0.0, "digits", 128, 300),
    _Plan("two", 2.0, 4, 30.0, "digits", 128, 300),
)
_THREE = (
    _Plan("digits", 1.0, 4, 0.0, "digits", 128, 300),
    _Plan("mnist", 5.0, 2, 30.0, "mnist:{}/mnist", 128, 600),
    _Plan("cifar10", 10.0, 4, 150.0, "cifar10:{}/cifar10", 128, 400),
)
_JOBS = {"two": _TWO, "three": _THREE}


@dataclass(frozen=True)
class SharingConfig(Checked):
    """The configuration of jobs that share a live cluster."""

    data: Annotated[
        Path | None,
        Setting(
            "Folder with mnist and cifar10, each in its standard files.  [default: digits in their place]",
            folder=True,
        ),
    ] = None
    jobs: Annotated[str, Setting("Which jobs come.", choices=_JOBS)] = "three"
    cores: Annotated[
        tuple[float, ...],
        Setting("Of each node, on which one worker runs.", metavar="CORES,...", read=parse_shares),
    ] = (0.6, 0.45, 0.35, 0.25)
    scale: Annotated[
        float, Setting("Of the jobs' lengths and of the times between them.", above=0, below=inf)
    ] = 1.0
    kill_after: Annotated[
        float,
        Setting(
            "Seconds from the last submission until a node is killed, with resizing.", least=0, below=inf
        ),
    ] = 20.0
    out: Folder = Path("runs/sharing")

    @property
    def plans(self) -> list[_Plan]:
        """Return the jobs."""
        folder = "" if self.data is None else str(self.data.absolute())
        return [
            replace(
                plan,
                at=plan.at * self.scale,
                iterations=max(1, round(plan.iterations * self.scale)),
                data=plan.data.format(folder) if folder else "digits",
            )
            for plan in _JOBS[self.jobs]
        ]

    @property
    def policies(self) -> list[str]:
        """Return the policies that are compared."""
        return [STATIC, ELASTIC] if self.jobs == "three" else [ELASTIC]


@dataclass
class _Watch:
    """What the scheduler has kept, from one look to the next: how long changes took, and who was where."""

    file: Path
    jobs: Mapping[str, Any] = field(default_factory=dict)  # by name, as kept last
    where: dict[tuple[str, str], str] = field(default_factory=dict)  # nodes by job and worker
    starts: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))  # by node
    joins: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    leaves: list[float] = field(default_factory=list)
    suspensions: list[float] = field(default_factory=list)
    _since: dict[tuple[str, str], tuple[str, float, bool]] = field(default_factory=dict)
    _suspending: dict[str, float] = field(default_factory=dict)

    def look(self) -> None:
        """Take in what has changed."""
        if not self.file.exists():
            return
        now = time.time()
        kept = json.loads(self.file.read_text())["machine"]["jobs"]
        self.jobs = {job["request"]["name"]: job for job in kept}
        there = set()
        for name, job in self.jobs.items():
            if job["state"] == "suspending":
                self._suspending.setdefault(name, now)
            elif (since := self._suspending.pop(name, None)) is not None and job["state"] == "suspended":
                self.suspensions.append(now - since)
            trains = any(phase == "running" for _, phase in job["leases"].values())
            for worker, (node, phase) in job["leases"].items():
                key = name, worker
                there.add(key)
                self.where[key] = node
                before, since, alone = self._since.get(key, (None, now, not trains))
                if phase == before:
                    continue
                if (before, phase) == ("starting", "running"):
                    (self.starts if alone else self.joins)[node].append(now - since)
                self._since[key] = phase, now, not trains
        for key in self._since.keys() - there:
            phase, since, _ = self._since.pop(key)
            if phase == "draining" and self.jobs[key[0]]["state"] in ("starting", "running"):
                self.leaves.append(now - since)

    def largest(self) -> tuple[str, str]:
        """Return the job that has the most workers, and the node of one of them."""
        name = max(self.jobs, key=lambda name: len(self.jobs[name]["leases"]))
        (node, _), *_ = self.jobs[name]["leases"].values()
        return name, node


@dataclass(frozen=True)
class _Outcome:
    """What came of jobs that shared the cluster."""

    lines: list[history.Line]  # of the cluster's record
    watch: _Watch
    records: Mapping[str, list[IterationRecord]]  # of each job's iterations
    parameters: Mapping[str, torch.Tensor]  # at each job's end, (elements,)
    killed: Mapping[str, float]  # when nodes were killed, in seconds since 1970, by Ray's id

    @property
    def account(self) -> Account:
        """Return who had what, until the last change."""
        return history.account(self.lines, max(line.time for line in self.lines))


class _Shared:
    """A cluster whose nodes have unequal limits, and jobs that share it."""

    def __init__(self, config: SharingConfig, cluster: RayCluster, console: Console) -> None:
        self._config = config
        self._cluster = cluster
        self._console = console
        self.places: dict[str, int] = {}  # numbers of nodes' limits, by Ray's id
        self._nodes: list[RayNode] = []
        cluster.add(STEADY, _SERVICES)
        for number in range(len(config.cores)):
            self._add(number)

    def _add(self, place: int) -> None:
        node = self._cluster.add(PLACE, cores=self._config.cores[place])
        self._nodes[place : place + 1] = [node]
        self.places[node.id] = place

    def run(
        self, name: str, plans: Sequence[_Plan], policy: str, kill_after: float | None = None
    ) -> _Outcome:
        """Have jobs share the cluster until all have ended, each submitted at its time.

        Raises:
            UnavailableError: One has not ended well.
        """
        storage = self._cluster.folder / "storage" / name
        watch = _Watch(storage / FOLDER / "cluster.json")
        killed: dict[str, float] = {}
        self._evenpace("cluster", "up", "--device", PLACE, "--storage", storage, "--policy", policy)
        began = time.time()
        coming = [(plan.at, plan) for plan in plans]
        kill_at = inf if kill_after is None else coming[-1][0] + kill_after
        while True:
            watch.look()
            now = time.time() - began
            if coming and now >= coming[0][0]:
                self._submit(coming.pop(0)[1], storage)
                continue
            if now >= kill_at:
                kill_at = inf
                job, node = watch.largest()
                killed[node] = time.time()
                self._cluster.kill(self._nodes[self.places[node]])
                self._console.print(f"{name}: a node of {job} was killed after {now:.0f} s; another comes")
                self._add(self.places[node])
            ended = [job for job in watch.jobs.values() if job["state"] == "ended"]
            if wrong := [job for job in ended if job["how"] != "done"]:
                raise UnavailableError(f"job {wrong[0]['request']['name']}: {wrong[0]['reason']}")
            if not coming and len(ended) == len(plans):
                break
            if now > _PATIENCE_SECONDS:
                raise UnavailableError(f"jobs have not ended within {_PATIENCE_SECONDS:g} s")
            time.sleep(_TICK_SECONDS)
        self._evenpace("cluster", "down")
        lines = history.read(storage / FOLDER / history.FILE)
        records, parameters = {}, {}
        for plan in plans:
            with open_state(storage / plan.name / MANAGER) as reader:
                # A job all of whose workers were lost goes on as another run.
                pages = (page for kept in reader.runs() for page in StoredRun(reader, kept, "").pages())
                records[plan.name] = [*itertools.chain.from_iterable(pages)]
            parameters[plan.name] = state_vector(torch.load(_parameters(storage, plan)))
        return _Outcome(lines, watch, records, parameters, killed)

    def _submit(self, plan: _Plan, storage: Path) -> None:
        self._evenpace(
            *("cluster", "submit", "--name", plan.name, "--workers", plan.devices, "--weight", plan.weight),
            *("--shards", 1, "--service-resource", f"{STEADY}=1", "--ps-options", "--checkpoint-every 20"),
            *(train_workload.__file__, *_training(plan), "--save", _parameters(storage, plan)),
        )

    def _evenpace(self, *words: Any) -> None:
        """Run a command of evenpace on the cluster (UnavailableError: it failed)."""
        group, name, *rest = map(str, words)
        line = [sys.executable, "-m", "evenpace", group, name, "--address", self._cluster.head.address, *rest]
        environment = {**os.environ, **self._cluster.head.environment}
        done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise UnavailableError(f"evenpace {group} {name} failed: {done.stderr or done.stdout}")


def run(config: SharingConfig, console: Console) -> dict[str, Any]:
    """Train the jobs by themselves and together, and print the figures beside those of virtual time.

    Returns, with times in seconds, `{"config", "profiles": {job: {"samples": sizes of parts,
    "seconds": of each on the first place}}, "factors": {job: [how much longer each place takes]},
    "overheads": {job: seconds of an iteration}, "delays": {"start", "join": by place, "leave", "suspend"},
    "policies": {policy: {"live": result, "simulated": result}}, "jobs": [{"policy", "job", "difference":
    relative, of the parameters, "batches": whether all are those of the job by itself, "suspensions",
    "begun_again": iterations}], "failure"}`, where a result is `{"makespan_s", "utilisation",
    "completion_s": {job: seconds}}`.
    """
    for name in {plan.data for plan in config.plans}:
        load(name)  # what cannot be read is an error now
    config.out.mkdir(parents=True, exist_ok=True)
    plans = config.plans
    profiles = {plan.name: _profile(plan, config.cores[0]) for plan in plans}
    alone: dict[str, _Outcome] = {}
    together: dict[str, _Outcome] = {}
    with RayCluster(None) as cluster:
        shared = _Shared(config, cluster, console)
        for plan in plans:
            single = replace(plan, at=0.0, devices=len(config.cores))
            alone[plan.name] = shared.run(f"alone-{plan.name}", [single], ELASTIC)
            console.print(f"{plan.name} by itself: {alone[plan.name].account.makespan:.0f} s")
        for policy in config.policies:
            kill_after = config.kill_after if policy == ELASTIC else None
            together[policy] = shared.run(policy, plans, policy, kill_after)
            console.print(f"{policy}: {together[policy].account.makespan:.0f} s")
            write_cluster_page(together[policy].account, config.out / f"{policy}.html")
    measured = _Measured([*alone.values(), *together.values()], shared.places, len(config.cores))
    models = {plan.name: _model(profiles[plan.name], alone[plan.name], plan, shared.places) for plan in plans}
    ends = [
        _end(policy, outcome, alone[plan.name], plan)
        for policy, outcome in together.items()
        for plan in plans
    ]
    figures = {
        "config": options_of(config),
        "profiles": {
            name: {"samples": times.sizes, "seconds": times.seconds} for name, times in profiles.items()
        },
        "factors": {name: model.factors for name, model in models.items()},
        "overheads": {name: model.overhead for name, model in models.items()},
        "delays": {
            "start": measured.starts,
            "join": measured.joins,
            "leave": measured.leave,
            "suspend": measured.suspend,
        },
        "policies": {
            policy: {
                "live": _result(outcome.account),
                "simulated": _result(_simulated(policy, outcome, plans, models, measured)),
            }
            for policy, outcome in together.items()
        },
        "jobs": ends,
        "failure": _failure(ends),
    }
    _print(console, figures)
    return figures


class _Measured:
    """Medians of what changes took in all runs, in seconds; by the node's place where it matters."""

    def __init__(self, outcomes: Sequence[_Outcome], places: Mapping[str, int], count: int) -> None:
        watches = [outcome.watch for outcome in outcomes]
        self.places = places  # numbers of nodes' limits, by Ray's id
        self.starts = _by_place([watch.starts for watch in watches], places, count)
        self.joins = _by_place([watch.joins for watch in watches], places, count) or self.starts
        self.leave = _median([seconds for watch in watches for seconds in watch.leaves])
        self.suspend = _median([seconds for watch in watches for seconds in watch.suspensions])


def _by_place(
    watched: Sequence[Mapping[str, list[float]]], places: Mapping[str, int], count: int
) -> list[float]:
    """Return the median of each place, or that of all where it has none; nothing where there are none."""
    seen = [(places[node], seconds) for one in watched for node, those in one.items() for seconds in those]
    if not seen:
        return []
    overall = _median([seconds for _, seconds in seen])
    own = ([seconds for place, seconds in seen if place == number] for number in range(count))
    return [_median(those) if those else overall for those in own]


def _median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else 0.0


def _training(plan: _Plan) -> list[Any]:
    """Return the arguments with which a job's script trains."""
    words = ["digits", "--data", plan.data, "--batch-size", plan.batch, "--iterations", plan.iterations]
    return [*words, "--dtype", "float64", "--test-samples", 0]


def _profile(plan: _Plan, cores: float) -> StepTimes:
    """Measure a job's step times at a limit of CPU time, up to a whole batch."""
    settings = ProfileConfig(_PROFILED_STEPS, _PROFILED_FROM, plan.batch, plan.name, cores)
    measured, _ = profile(Path(train_workload.__file__), [*map(str, _training(plan))], settings)
    return measured.times


@dataclass(frozen=True)
class _Model:
    """What an iteration of a job takes."""

    times: Sequence[StepTimes]  # of each place
    factors: Sequence[float]  # how much longer each place takes than in the profile
    overhead: float  # seconds of an iteration in which nothing is computed


def _model(profiled: StepTimes, outcome: _Outcome, plan: _Plan, places: Mapping[str, int]) -> _Model:
    """Return what a job's iterations take, by its profile and what it did on all nodes by itself.

    Factors and overhead are medians over the iterations of the job by itself, but for the first ones.

    Raises:
        UnavailableError: There are no such iterations.
    """
    nodes = {worker: node for (job, worker), node in outcome.watch.where.items() if job == plan.name}
    whole = [
        record for record in outcome.records[plan.name] if len(record.workers) == len(set(nodes.values()))
    ]
    settled = whole[_SETTLED:]
    if len(nodes) < len(set(places.values())) or not settled:
        raise UnavailableError(
            f"job {plan.name} has ended before it had all nodes for a while: --scale it up"
        )
    ratios = defaultdict(list)
    rests = []
    for record in settled:
        taken = record.batch_processing_times
        rests.append(record.duration - float(taken.max()))
        for worker, count, seconds in zip(record.workers, record.batch_sizes, taken, strict=True):
            if count:
                ratios[places[nodes[worker]]].append(float(seconds) / profiled.time(int(count)))
    factors = [statistics.median(ratios[place]) for place in sorted(ratios)]
    times = [
        StepTimes(profiled.sizes, tuple(seconds * factor for seconds in profiled.seconds))
        for factor in factors
    ]
    return _Model(times, factors, max(0.0, statistics.median(rests)))


def _simulated(
    policy: str,
    outcome: _Outcome,
    plans: Sequence[_Plan],
    models: Mapping[str, _Model],
    measured: _Measured,
) -> Account:
    """Return what the machine does in virtual time with jobs and nodes that come and go as they did."""
    account, places = outcome.account, measured.places
    submitted = {life.job: life.submitted - account.began for life in account.lives}
    jobs = []
    for plan in plans:
        model = models[plan.name]
        by_node = {node: model.times[place] for node, place in places.items()}
        request = JobRequest(plan.name, plan.devices, plan.weight)
        at = submitted[plan.name]
        jobs.append(SharedJob(request, at, plan.iterations, plan.batch, by_node, model.overhead))
    changes: list[NodeChange] = []
    there: set[str] = set()
    loss = 0.0
    for line in outcome.lines:
        if not isinstance(line, history.NodesLine) or not line.nodes:  # none: the scheduler's end
            continue
        at = line.time - account.began
        changes += [NodeChange(at, Node(name, PLACE, 1)) for name in line.nodes if name not in there]
        for name in there - line.nodes.keys():
            killed = outcome.killed[name]
            loss = line.time - killed
            changes.append(NodeChange(killed - account.began, Node(name, PLACE, 1), lost=True))
        there = set(line.nodes)
    starts, joins = (
        {node: seconds[place] for node, place in places.items()}
        for seconds in (measured.starts, measured.joins)
    )
    delays = Delays(starts, joins, measured.leave, measured.suspend, loss)
    return simulate_delayed(jobs, changes, POLICIES[policy](), delays)


def _result(account: Account) -> dict[str, Any]:
    """Return figures of jobs that have all ended."""
    return {
        "makespan_s": account.makespan,
        "utilisation": account.utilisation,
        "completion_s": {life.job: life.lasted for life in account.lives},
    }


def _end(policy: str, outcome: _Outcome, alone: _Outcome, plan: _Plan) -> dict[str, Any]:
    """Hold what a job has come to against what it comes to by itself."""
    mine, its = outcome.parameters[plan.name], alone.parameters[plan.name]
    (life,) = [life for life in outcome.account.lives if life.job == plan.name]
    records = outcome.records[plan.name]
    return {
        "policy": policy,
        "job": plan.name,
        "difference": float((mine - its).abs().max() / its.abs().max()),
        "batches": _batches(records) == _batches(alone.records[plan.name])
        and len(records) == plan.iterations
        and all(int(record.batch_sizes.sum()) == record.total for record in records),
        "suspensions": life.suspensions,
        "begun_again": sum(after.attempt > before.attempt for before, after in itertools.pairwise(records)),
    }


def _batches(records: Sequence[IterationRecord]) -> list[tuple[int, int, int, int]]:
    return [(record.iteration, record.epoch, record.start, record.total) for record in records]


def _failure(ends: Sequence[Mapping[str, Any]]) -> str | None:
    for end in ends:
        if not end["batches"]:
            return f"{end['job']} under {end['policy']}: its iterations are not those of the job by itself"
        if not end["difference"] <= _TOLERANCE:
            return f"{end['job']} under {end['policy']}: parameters differ by {end['difference']:.2g}"
    return None


def _print(console: Console, figures: Mapping[str, Any]) -> None:
    columns: Columns = {"live": ("live", "{:.0f}"), "simulated": ("in virtual time", "{:.0f}")}
    columns = {**columns, "error": ("off by", "{:+.1%}")}
    for policy, results in figures["policies"].items():
        live, simulated = results["live"], results["simulated"]
        rows = [("makespan, s", live["makespan_s"], simulated["makespan_s"])]
        rows += [
            (f"completion of {job}, s", seconds, simulated["completion_s"][job])
            for job, seconds in live["completion_s"].items()
        ]
        cells = (
            (name, {"live": ours, "simulated": its, "error": its / ours - 1}) for name, ours, its in rows
        )
        console.print(table_of(policy, "", columns, cells))
    if STATIC in figures["policies"]:
        before, after = (figures["policies"][policy]["live"] for policy in (STATIC, ELASTIC))
        first = list(before["completion_s"])[-1]
        console.print(
            f"with resizing, the makespan is {1 - after['makespan_s'] / before['makespan_s']:.1%} shorter "
            f"(38% in the paper), and {first}, of the highest priority, ends "
            f"{1 - after['completion_s'][first] / before['completion_s'][first]:.1%} sooner (45%)"
        )
    columns = {
        "policy": ("policy", "{}"),
        "difference": ("parameters differ by", "{:.1e}"),
        "batches": ("all batches", lambda same: "the same" if same else "not the same"),
        "suspensions": ("suspensions", "{}"),
        "begun_again": ("iterations begun again", "{}"),
    }
    console.print(
        table_of("Against the job by itself", "job", columns, ((e["job"], e) for e in figures["jobs"]))
    )


def _parameters(storage: Path, plan: _Plan) -> Path:
    """Return the file of a job's parameters at its end."""
    return storage / f"{plan.name}.pt"
