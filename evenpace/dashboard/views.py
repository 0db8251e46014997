"""Values that the page shows of jobs, for JSON: the manager's own and `evenpace.overview.figures`."""

from collections import Counter
from dataclasses import asdict
from typing import Any

from evenpace.overview import phrases
from evenpace.overview.columns import SHOWN
from evenpace.overview.events import condensed
from evenpace.overview.feed import FollowedJob, change_values, values_of
from evenpace.overview.figures import JobFigures, Spread, Timeline, TimeParts, WorkerFigures

_EVENTS = 50  # the last ones, which are shown
_DIGITS = 5  # significant digits of figures
_FEW = 16  # the most workers that are all drawn
# What the page shows as the manager has it: of a job in the list, then of one alone, and of its training.
_OF_LINE = ("job", "run", "state", "reason", "members", "workers", "iteration")
_OF_JOB = ("attempt", "group_size", "policy", "predictor", "mode", "batch_size", "sizer", "sizing")
_OF_SPEC = ("dataset_size", "micro_batch", "seed")
_OF_STRAGGLER = ("worker", "verdict", "verdict_text", "balanced_text")
# What is known of a worker before its first iteration.
_NOTHING = {
    **dict.fromkeys([*WorkerFigures.__dataclass_fields__, *SHOWN]),
    "verdict": "",
    "verdict_text": "has finished no iteration yet",
    "balanced_text": "",
    "seconds_per_sample": dict.fromkeys(Spread.__dataclass_fields__),
    "time_parts": dict.fromkeys(TimeParts.__dataclass_fields__),
}


def job_line(job: FollowedJob, figures: JobFigures) -> dict[str, Any]:
    """Return the values of a job in the list of jobs."""
    summary = job.summary
    return {
        **values_of(summary, _OF_LINE),
        "state_text": phrases.job_state(summary.state, summary.reason),
        "members_text": phrases.members(
            summary.members, summary.workers, over=summary.state in ("ended", "failed")
        ),
        **values_of(figures, ("headline", "speedup", "throughput", "verdicts")),
    }


def job_view(job: FollowedJob, figures: JobFigures) -> dict[str, Any]:
    """Return all values of a job whose number does not grow with its workers."""
    summary, spec = job.summary, job.summary.spec
    numbers = [
        name for name in JobFigures.__dataclass_fields__ if name not in ("workers", "headline", "verdicts")
    ]
    names = [worker.worker for worker in figures.workers]
    straggler = next((one for one in figures.workers if one.verdict in ("chronic", "passing")), None)
    return rounded(  # type: ignore[no-any-return]
        job_line(job, figures)
        | {
            **values_of(summary, _OF_JOB),
            **values_of(spec, _OF_SPEC),
            "exchange": phrases.exchange(summary.exchange, summary.attempt, summary.group_size),
            "group_changes": [change_values(change) for change in job.changes],
            "group_changes_text": phrases.group_changes(job.changes),
            "behind": job.behind,
            "first_size": spec.total_batch_size,
            "figures": values_of(figures, numbers),
            "speedup_doubt": figures.speedup_doubt,
            "saved_text": ", ".join(
                filter(None, (phrases.saved(figures.saved_seconds), figures.saved_doubt))
            ),
            # All workers, in order; None where they are too many to be drawn one by one.
            "names": sorted(names) if len(names) <= _FEW else None,
            # The worker that slows the others most, and what the balancer does about it.
            "straggler": straggler and values_of(straggler, _OF_STRAGGLER),
            "slowest": figures.workers[0].worker if figures.workers else None,
            "member_states": dict(Counter(member.state for member in job.members)),
            "events": [{"at": event.at, "text": event.text} for event in condensed(job.events)[-_EVENTS:]],
        }
    )


def worker_rows(job: FollowedJob, figures: JobFigures) -> list[dict[str, Any]]:
    """Return a row for each worker of the last iterations, and for each member without an iteration yet."""
    members = {member.worker: member for member in job.members}
    rows = [asdict(worker) for worker in figures.workers]
    seen = {worker.worker for worker in figures.workers}
    rows += [
        _NOTHING | {"worker": name, "state": member.state}
        for name, member in members.items()
        if name not in seen
    ]
    for row in rows:
        known = members.get(row["worker"])
        row["bounds"] = row["iteration"] = row["silence"] = row["rank"] = None
        if known is not None:
            bounds = known.bounds
            row["bounds"] = [bounds.minimum, bounds.maximum, bounds.granularity, bounds.at_once or 1]
            row["iteration"], row["silence"], row["rank"] = known.iteration, known.silence, known.rank
    return rows


def timeline_view(timeline: Timeline) -> dict[str, Any]:
    """Return a job's timeline; spreads are short lists, [minimum, median, maximum]."""
    view: dict[str, Any] = {}
    for name in Timeline.__dataclass_fields__:
        values = getattr(timeline, name)
        if name == "workers":
            view[name] = {worker: asdict(line) for worker, line in values.items()}
        elif values and hasattr(values[0], "median"):
            view[name] = [[spread.minimum, spread.median, spread.maximum] for spread in values]
        else:
            view[name] = values
    return rounded(view)  # type: ignore[no-any-return]


def rounded(value: Any) -> Any:
    """Return the same value with its numbers rounded to 5 digits, which halves the bytes."""
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if abs(value) < 1e6 else round(value, 1)
    if isinstance(value, dict):
        return {key: rounded(part) for key, part in value.items()}
    if isinstance(value, list):
        return [rounded(part) for part in value]
    return value
