"""Verdict on a run, from the files written during it."""

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from idl.plan import JobSpec
from lab.chaos import checks
from lab.chaos.batches import Batch, Batches, same_versions, scaled, scheduled, sizes_of, taken
from lab.chaos.chaos_cluster import ChaosCluster
from lab.chaos.config import ChaosConfig
from lab.chaos.fault_schedule import KINDS
from lab.chaos.injections import Order
from lab.chaos.job_progress import Progress
from lab.chaos.ledgers import Journal, ShardSteps, read_finals
from lab.chaos.reference_training import LEAST, MOST, SCHEDULED, SPEC, train_alone
from lab.chaos.step_records import ALL_REDUCE, StepRecords, step_records
from lab.chaos.storm import Storm
from lab.chaos.supervisor import Ending

CALM = "calm"  # the folder of a run without faults, within that of the run that is judged
_MOST = 50  # violations of a job that are listed
_RECENT_SECONDS = 60.0  # seconds before a worker's end in which its silence counts
_SILENT_SECONDS = 30.0  # seconds of silence after which a worker may be taken out of its job


@dataclass
class Found:
    """Findings about one job."""

    iterations: int = 0  # number of its iterations
    # Number of rewinds of its shards, all together; with all-reduce, of attempts that were begun.
    rewinds: int = 0
    redone: int = 0  # iterations that were taken back and done again, of the shard with the most
    longest_stall: float = 0.0  # longest time between two steps, in seconds
    error: float = 0.0  # largest relative error of the parameters that were compared
    compared: int = 0  # number of versions whose parameters were compared
    missing: int = 0  # iterations of which the manager has no record, since it died before that was written
    sizes: tuple[int, int] = (0, 0)  # least and most samples of a batch, those that end an epoch left out
    changes: int = 0  # changes of that size
    # True if the final parameters have the bits of a run without faults; None without such a run.
    same_bits: bool | None = None
    violations: list[str] = field(default_factory=list)  # violations, in words


@dataclass
class Verdict:
    """Outcome of a run."""

    settings: ChaosConfig  # settings of the run
    faults: list[dict[str, Any]]  # a line for each fault, for JSON
    without_target: dict[str, int]  # faults that found nothing to befall, by kind
    skipped: dict[str, str]  # reasons why kinds of faults could not be caused, by kind
    jobs: dict[str, Found] = field(default_factory=dict)  # findings about each job
    # Seconds of silence after which workers were taken out of the job, by worker.
    excused: dict[str, float] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)  # violations, in words; of each job's, the first ones
    seconds: float = 0.0  # duration of the whole run

    @property
    def counts(self) -> dict[str, tuple[int, int, int]]:
        """Return by kind the number of faults that came, that fired, and that found no target."""
        fired = Counter(str(fault["kind"]) for fault in self.faults if fault["evidence"])
        came = Counter(str(fault["kind"]) for fault in self.faults) + Counter(self.without_target)
        return {
            kind: (came[kind], fired[kind], self.without_target.get(kind, 0))
            for kind in KINDS
            if kind in self.settings.wanted and kind not in self.skipped
        }

    def as_json(self) -> dict[str, Any]:
        """Return the whole outcome, for JSON."""
        names = ("faults", "fired", "without_target")
        by_kind = {kind: dict(zip(names, counts, strict=True)) for kind, counts in self.counts.items()}
        return {**asdict(self), "by_kind": by_kind, "repeat": self.settings.command}


def judge(
    cluster: ChaosCluster,
    storm: Storm,
    progress: Mapping[str, Progress],
    history: Mapping[str, list[dict[str, Any]]],
    problems: list[str],
) -> Verdict:
    """Judge a run that is over; `progress` and `history`, the manager's records, are by job."""
    outcome = Verdict(
        cluster.settings,
        [storm.line(one) for one in storm.over],
        dict(Counter(fault.kind for fault in storm.without_target)),
        cluster.skipped,
        violations=list(problems),
    )
    outcome.violations += [
        f"fault {line['number']}, {line['kind']} of {line['target']}, did not fire"
        for line in outcome.faults
        if not line["evidence"]
    ]
    outcome.violations += [
        f"no {kind} fired: of {came} that came, {without_target} found nothing to befall"
        for kind, (came, fired, without_target) in outcome.counts.items()
        if not fired
    ]
    orders = [one.injection for one in storm.over if isinstance(one.injection, Order)]
    ordered = {order.size for order in orders if order.size is not None}
    for ending in cluster.supervisor.endings:
        _judge_ending(ending, cluster, storm, outcome)
    for job in cluster.jobs:
        found = outcome.jobs[job] = _judge_job(cluster, job, history[job], outcome.excused, ordered)
        found.longest_stall = round(progress[job].longest, 2)
        whose = f"{job}: " if len(cluster.jobs) > 1 else ""
        outcome.violations += [whose + what for what in found.violations[:_MOST]]
        if len(found.violations) > _MOST:
            outcome.violations.append(f"{whose}and {len(found.violations) - _MOST} more")
    return outcome


def _judge_job(
    cluster: ChaosCluster,
    job: str,
    history: list[dict[str, Any]],
    excused: Mapping[str, float],
    ordered: Collection[int],
) -> Found:
    records = step_records(cluster, job)
    shards = [ShardSteps.of(name, records.every, its) for name, its in records.ledgers().items()]
    workers = (*cluster.jobs[job], *cluster.guests)
    journals = [Journal.of(worker, cluster.journals(worker)) for worker in workers]
    shortest = min(shards, key=lambda shard: len(shard.steps))
    found = Found(
        iterations=len(shortest.steps),
        rewinds=sum(shard.rewinds for shard in shards),
        redone=max(shard.redone for shard in shards),
        missing=len(shortest.steps) - len(history),
    )
    spec = SCHEDULED if cluster.settings.sizer == "schedule" else SPEC
    allowed = _allowed(cluster, spec, ordered)
    batches = _batches(cluster, records, spec, allowed, found)
    held = [batches(step.attempt, step.iteration) for step in shortest.steps]
    if sizes := sizes_of(spec, held):
        found.sizes = min(sizes), max(sizes)
        found.changes = sum(one != other for one, other in itertools.pairwise(sizes))
    if allowed is not None:
        found.violations += checks.sizes_ordered(sizes, allowed)
    found.violations += checks.all_there(shards, max(len(shard.steps) for shard in shards))
    for shard in shards:
        found.violations += checks.exactly_once(shard, spec, batches)
    found.violations += checks.journals_agree(journals, shards, spec, batches)
    by_workers = cluster.settings.exchange == ALL_REDUCE
    unreported = 1 + cluster.settings.lookahead if by_workers else 0
    found.violations += checks.history_agrees(history, shortest, batches, unreported=unreported)
    if by_workers:
        found.violations += checks.attempts_agree(journals)
    same = None
    if cluster.settings.sizes_change:
        same = same_versions(spec, records.ledgers()[shortest.name], held)
    known = [batch for batch in held if batch is not None]
    _judge_parameters(cluster, job, journals, found, excused, spec, known, same)
    return found


def _batches(
    cluster: ChaosCluster,
    records: StepRecords,
    spec: JobSpec,
    allowed: Collection[int] | None,
    found: Found,
) -> Batches:
    """Return the job's batches: those that are due, or where somebody chooses, those in the ledgers."""
    if not cluster.settings.sizes_change:
        return scheduled(spec)
    least, most = (min(allowed), max(allowed)) if allowed is not None else (LEAST, MOST)
    batches, violations = taken(spec, records.ledgers(), least, most)
    found.violations += violations
    return batches


def _allowed(cluster: ChaosCluster, spec: JobSpec, ordered: Collection[int]) -> set[int] | None:
    """Return the sizes that batches may have; None where a sizer or a schedule chooses them."""
    settings = cluster.settings
    if settings.sizer != "fixed":
        return None
    sizes = {spec.total_batch_size, *ordered}
    if not settings.scale_batch:
        return sizes
    return scaled(sizes, settings.workers, settings.workers + len(cluster.guests))


def _judge_ending(ending: Ending, cluster: ChaosCluster, storm: Storm, outcome: Verdict) -> None:
    """Add a violation for a process that ended without being killed, unless faults excuse a worker's end."""
    if cluster.supervisor.processes[ending.name].role == "worker" and ending.code == 1:
        silence = storm.seconds_unreachable(ending.name, ending.at - _RECENT_SECONDS, ending.at)
        if "not a member" in ending.log and silence > _SILENT_SECONDS:
            outcome.excused[ending.name] = round(silence, 1)
            return
    outcome.violations.append(f"{ending.name} ended with status {ending.code}:\n{ending.log}")


def _judge_parameters(
    cluster: ChaosCluster,
    job: str,
    journals: list[Journal],
    found: Found,
    excused: Mapping[str, float],
    spec: JobSpec,
    batches: Sequence[Batch],
    same: Mapping[int, int] | None,
) -> None:
    """Compare the parameters that workers had with those of one process, and of a run without faults.

    Where sizes change, `same` has the last version of each attempt that came of these batches.
    """
    last, workers = found.iterations, cluster.jobs[job]
    finals = _finals(cluster.folder, workers)
    found.violations += [
        f"{worker}: did not come to the end with its parameters"
        for worker in workers
        if worker not in finals and worker not in excused
    ]
    prints, alone = train_alone(last, spec, batches.__getitem__)
    scale = float(np.abs(alone).max())
    for worker, (version, parameters) in finals.items():
        if version != last:
            found.violations.append(f"{worker}: ended with version {version}, but the job has {last}")
        else:
            found.error = max(found.error, checks.relative_error(parameters, alone, scale))
            what = f"{worker}'s final parameters"
            found.violations += checks.parameters_equal(what, parameters, alone, scale)
    if cluster.settings.exchange == ALL_REDUCE:
        found.violations += checks.finals_equal(finals)
    for journal in journals:
        for attempt, version, values in journal.prints:
            if version in prints and (same is None or version <= same.get(attempt, 0)):
                what = f"{journal.worker}'s parameters of version {version} in attempt {attempt}"
                mine = np.array(values)
                found.error = max(found.error, checks.relative_error(mine, prints[version], scale))
                found.violations += checks.parameters_equal(what, mine, prints[version], scale)
                found.compared += 1
    if cluster.settings.same_bits:
        other = list(checks.bits_equal(finals, _finals(cluster.folder / CALM, workers)))
        found.same_bits = not other
        found.violations += other


def _finals(folder: Path, workers: Iterable[str]) -> dict[str, tuple[int, NDArray[np.float64]]]:
    return read_finals(folder / "parameters" / f"{worker}.npz" for worker in workers)
