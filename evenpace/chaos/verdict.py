"""Judges a run by what was written down during it."""

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from evenpace.chaos import checks
from evenpace.chaos.cluster import Cluster
from evenpace.chaos.history import Course, Journal, read_ledger
from evenpace.chaos.processes import Ending
from evenpace.chaos.progress import Progress
from evenpace.chaos.schedule import KINDS
from evenpace.chaos.settings import Settings
from evenpace.chaos.storm import Storm
from evenpace.chaos.training import SPEC, train_alone

_MOST = 50  # violations that are told
_RECENT_SECONDS = 60.0  # before an end, in which a worker's silence counts
_SILENT_SECONDS = 30.0  # of silence, for which a worker may be taken out of its job


@dataclass
class Outcome:
    """What came of a run.

    Attributes:
        settings: Of it.
        faults: A line for each.
        without_target: Faults that found nothing to befall, by kind.
        skipped: Why kinds of faults could not be brought about, by kind.
        iterations: Of the job.
        rewinds: That shards made, all together.
        redone: Iterations that were taken back and done again, of the shard with the most.
        longest_stall: Seconds between two steps, at most.
        error: Of the parameters, relative; the largest of those that were compared.
        compared: How many versions' parameters were compared.
        missing: Iterations of which the manager has no record, since it died before that was written.
        excused: Seconds of silence after which workers were taken out of the job, by worker.
        violations: In words.
        seconds: That all of it took.
    """

    settings: Settings
    faults: list[dict[str, Any]]
    without_target: dict[str, int]
    skipped: dict[str, str]
    iterations: int = 0
    rewinds: int = 0
    redone: int = 0
    longest_stall: float = 0.0
    error: float = 0.0
    compared: int = 0
    missing: int = 0
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
    cluster: Cluster, storm: Storm, progress: Progress, history: list[dict[str, Any]], problems: list[str]
) -> Outcome:
    """What came of a run that is over."""
    outcome = Outcome(
        cluster.settings,
        [storm.line(one) for one in storm.over],
        dict(Counter(fault.kind for fault in storm.without_target)),
        cluster.skipped,
        longest_stall=round(progress.longest, 2),
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
    courses = [_course(cluster, shard) for shard in cluster.shards]
    journals = [_journal(cluster, worker) for worker in cluster.workers]
    shortest = min(courses, key=lambda course: len(course.steps))
    outcome.iterations = len(shortest.steps)
    outcome.rewinds = sum(course.rewinds for course in courses)
    outcome.redone = max(course.redone for course in courses)
    found: list[str] = []
    found += checks.all_there(courses, max(len(course.steps) for course in courses))
    for course in courses:
        found += checks.exactly_once(course, SPEC)
    found += checks.journals_agree(journals, courses, SPEC)
    found += checks.history_agrees(history, shortest, SPEC)
    outcome.missing = outcome.iterations - len(history)
    found += _judge_parameters(cluster, journals, outcome)
    outcome.violations += found[:_MOST]
    if len(found) > _MOST:
        outcome.violations.append(f"and {len(found) - _MOST} more")
    return outcome


def _judge_ending(ending: Ending, cluster: Cluster, storm: Storm, outcome: Outcome) -> None:
    """A process has ended that nobody had killed."""
    if cluster.supervisor.processes[ending.name].role == "worker" and ending.code == 1:
        silence = storm.unheard(ending.name, ending.at - _RECENT_SECONDS, ending.at)
        if "not a member" in ending.log and silence > _SILENT_SECONDS:
            outcome.excused[ending.name] = round(silence, 1)
            return
    outcome.violations.append(f"{ending.name} ended with status {ending.code}:\n{ending.log}")


def _course(cluster: Cluster, shard: str) -> Course:
    course = Course(shard, cluster.settings.checkpoint_every)
    for entry in read_ledger(cluster.ledgers(shard)):
        course.add(entry)
    return course


def _journal(cluster: Cluster, worker: str) -> Journal:
    journal = Journal(worker)
    for path in cluster.journals(worker):
        journal.read(path)
    return journal


def _judge_parameters(cluster: Cluster, journals: list[Journal], outcome: Outcome) -> list[str]:
    """All parameters that workers have had against those of one process."""
    finals = {}
    found = []
    for worker in cluster.workers:
        path = cluster.folder / "parameters" / f"{worker}.npz"
        if path.exists():
            with np.load(path) as saved:
                finals[worker] = int(saved["version"]), saved["parameters"]
    last = outcome.iterations
    found += [
        f"{worker}: did not come to the end with its parameters"
        for worker in cluster.workers
        if worker not in finals and worker not in outcome.excused
    ]
    prints, alone = train_alone(last)
    scale = float(np.abs(alone).max())
    for worker, (version, parameters) in finals.items():
        if version != last:
            found.append(f"{worker}: ended with version {version}, but the job has {last}")
        else:
            outcome.error = max(outcome.error, checks.relative_error(parameters, alone, scale))
            found += checks.parameters_equal(f"{worker}'s final parameters", parameters, alone, scale)
    for journal in journals:
        for attempt, version, values in journal.prints:
            if version in prints:
                what = f"{journal.worker}'s parameters of version {version} in attempt {attempt}"
                mine = np.array(values)
                outcome.error = max(outcome.error, checks.relative_error(mine, prints[version], scale))
                found += checks.parameters_equal(what, mine, prints[version], scale)
                outcome.compared += 1
    return found
