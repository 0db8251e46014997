"""Judges a run by what was written down during it."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenpace.lab.chaos import checks
from evenpace.lab.chaos.chaos_cluster import ChaosCluster
from evenpace.lab.chaos.fault_schedule import KINDS
from evenpace.lab.chaos.job_progress import Progress
from evenpace.lab.chaos.ledgers import Journal, ShardSteps, read_ledger
from evenpace.lab.chaos.reference_training import SPEC, train_alone
from evenpace.lab.chaos.settings import Settings
from evenpace.lab.chaos.storm import Storm
from evenpace.lab.chaos.supervisor import Ending

CALM = "calm"  # the folder of a run without faults, within that of the run that is judged
_MOST = 50  # violations that are told
_RECENT_SECONDS = 60.0  # before an end, in which a worker's silence counts
_SILENT_SECONDS = 30.0  # of silence, for which a worker may be taken out of its job


@dataclass
class Found:
    """What came of one job.

    Attributes:
        iterations: Of it.
        rewinds: That shards made, all together.
        redone: Iterations that were taken back and done again, of the shard with the most.
        longest_stall: Seconds between two steps, at most.
        error: Of the parameters, relative; the largest of those that were compared.
        compared: How many versions' parameters were compared.
        missing: Iterations of which the manager has no record, since it died before that was written.
        same_bits: Whether the final parameters are those of a run without faults; None without such a run.
        violations: In words.
    """

    iterations: int = 0
    rewinds: int = 0
    redone: int = 0
    longest_stall: float = 0.0
    error: float = 0.0
    compared: int = 0
    missing: int = 0
    same_bits: bool | None = None
    violations: list[str] = field(default_factory=list)


@dataclass
class Outcome:
    """What came of a run.

    Attributes:
        settings: Of it.
        faults: A line for each.
        without_target: Faults that found nothing to befall, by kind.
        skipped: Why kinds of faults could not be brought about, by kind.
        jobs: What came of each.
        excused: Seconds of silence after which workers were taken out of the job, by worker.
        violations: In words, of the jobs' the first ones.
        seconds: That all of it took.
    """

    settings: Settings
    faults: list[dict[str, Any]]
    without_target: dict[str, int]
    skipped: dict[str, str]
    jobs: dict[str, Found] = field(default_factory=dict)
    excused: dict[str, float] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def counts(self) -> dict[str, tuple[int, int, int]]:
        """By kind that was to come: how many faults came, how many of them fired, and found no target."""
        fired = Counter(str(fault["kind"]) for fault in self.faults if fault["evidence"])
        came = Counter(str(fault["kind"]) for fault in self.faults) + Counter(self.without_target)
        return {
            kind: (came[kind], fired[kind], self.without_target.get(kind, 0))
            for kind in KINDS
            if kind in self.settings.wanted and kind not in self.skipped
        }

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        names = ("faults", "fired", "without_target")
        by_kind = {kind: dict(zip(names, counts, strict=True)) for kind, counts in self.counts.items()}
        return {**asdict(self), "by_kind": by_kind, "repeat": self.settings.command}


def judge(
    cluster: ChaosCluster,
    storm: Storm,
    progress: Mapping[str, Progress],
    history: Mapping[str, list[dict[str, Any]]],
    problems: list[str],
) -> Outcome:
    """What came of a run that is over; progress and the manager's history are those of each job."""
    outcome = Outcome(
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
    for ending in cluster.supervisor.endings:
        _judge_ending(ending, cluster, storm, outcome)
    for job in cluster.jobs:
        found = outcome.jobs[job] = _judge_job(cluster, job, history[job], outcome.excused)
        found.longest_stall = round(progress[job].longest, 2)
        whose = f"{job}: " if len(cluster.jobs) > 1 else ""
        outcome.violations += [whose + what for what in found.violations[:_MOST]]
        if len(found.violations) > _MOST:
            outcome.violations.append(f"{whose}and {len(found.violations) - _MOST} more")
    return outcome


def _judge_job(
    cluster: ChaosCluster, job: str, history: list[dict[str, Any]], excused: Mapping[str, float]
) -> Found:
    courses = [_course(cluster, shard, job) for shard in cluster.shards]
    journals = [_journal(cluster, worker) for worker in cluster.jobs[job]]
    shortest = min(courses, key=lambda course: len(course.steps))
    found = Found(
        iterations=len(shortest.steps),
        rewinds=sum(course.rewinds for course in courses),
        redone=max(course.redone for course in courses),
        missing=len(shortest.steps) - len(history),
    )
    found.violations += checks.all_there(courses, max(len(course.steps) for course in courses))
    for course in courses:
        found.violations += checks.exactly_once(course, SPEC)
    found.violations += checks.journals_agree(journals, courses, SPEC)
    found.violations += checks.history_agrees(history, shortest, SPEC)
    _judge_parameters(cluster, journals, found, excused)
    return found


def _judge_ending(ending: Ending, cluster: ChaosCluster, storm: Storm, outcome: Outcome) -> None:
    """A process has ended that nobody had killed."""
    if cluster.supervisor.processes[ending.name].role == "worker" and ending.code == 1:
        silence = storm.unheard(ending.name, ending.at - _RECENT_SECONDS, ending.at)
        if "not a member" in ending.log and silence > _SILENT_SECONDS:
            outcome.excused[ending.name] = round(silence, 1)
            return
    outcome.violations.append(f"{ending.name} ended with status {ending.code}:\n{ending.log}")


def _course(cluster: ChaosCluster, shard: str, job: str) -> ShardSteps:
    course = ShardSteps(shard, cluster.settings.checkpoint_every)
    for entry in read_ledger(cluster.ledgers(shard, job)):
        course.add(entry)
    return course


def _journal(cluster: ChaosCluster, worker: str) -> Journal:
    journal = Journal(worker)
    for path in cluster.journals(worker):
        journal.read(path)
    return journal


def _judge_parameters(
    cluster: ChaosCluster, journals: list[Journal], found: Found, excused: Mapping[str, float]
) -> None:
    """All parameters that workers have had against those of one process, and of a run without faults."""
    last, workers = found.iterations, [journal.worker for journal in journals]
    finals = _finals(cluster.folder, workers)
    found.violations += [
        f"{worker}: did not come to the end with its parameters"
        for worker in workers
        if worker not in finals and worker not in excused
    ]
    prints, alone = train_alone(last)
    scale = float(np.abs(alone).max())
    for worker, (version, parameters) in finals.items():
        if version != last:
            found.violations.append(f"{worker}: ended with version {version}, but the job has {last}")
        else:
            found.error = max(found.error, checks.relative_error(parameters, alone, scale))
            what = f"{worker}'s final parameters"
            found.violations += checks.parameters_equal(what, parameters, alone, scale)
    for journal in journals:
        for attempt, version, values in journal.prints:
            if version in prints:
                what = f"{journal.worker}'s parameters of version {version} in attempt {attempt}"
                mine = np.array(values)
                found.error = max(found.error, checks.relative_error(mine, prints[version], scale))
                found.violations += checks.parameters_equal(what, mine, prints[version], scale)
                found.compared += 1
    if cluster.settings.deterministic:
        other = list(checks.bits_equal(finals, _finals(cluster.folder / CALM, workers)))
        found.same_bits = not other
        found.violations += other


def _finals(folder: Path, workers: Iterable[str]) -> dict[str, tuple[int, NDArray[np.float64]]]:
    """The last version and its parameters, by worker."""
    finals = {}
    for worker in workers:
        path = folder / "parameters" / f"{worker}.npz"
        if path.exists():
            with np.load(path) as saved:
                finals[worker] = int(saved["version"]), saved["parameters"]
    return finals
