"""Values that the page shows of jobs, for JSON: the manager's own and `evenpace.overview.figures`."""

from collections import Counter
from dataclasses import asdict
from typing import Any

from evenpace.overview import phrases
from evenpace.overview.columns import SHOWN
from evenpace.overview.events import condensed
from evenpace.overview.feed import FollowedJob, change_values
from evenpace.overview.figures import JobFigures, Timeline, WorkerFigures

_EVENTS = 50  # the last ones, which are shown
_DIGITS = 5  # significant digits of figures
_FEW = 16  # the most workers that are all drawn


def job_line(job: FollowedJob, figures: JobFigures) -> dict[str, Any]:
    """Return the values of a job in the list of jobs."""
    summary = job.summary
    return {
        "job": summary.job,
        "run": summary.run,
        "state": summary.state,
        "state_text": phrases.job_state(summary.state, summary.reason),
        "reason": summary.reason,
        "members": summary.members,
        "workers": summary.workers,
        "members_text": phrases.members(
            summary.members, summary.workers, over=summary.state in ("ended", "failed")
        ),
        "iteration": summary.iteration,
        "headline": figures.headline,
        "speedup": figures.speedup,
        "throughput": figures.throughput,
        "verdicts": figures.verdicts,
    }


def job_view(job: FollowedJob, figures: JobFigures) -> dict[str, Any]:
    """Return all values of a job whose number does not grow with its workers."""
    summary, spec = job.summary, job.summary.spec
    numbers = {
        name: getattr(figures, name)
        for name in JobFigures.__dataclass_fields__
        if name not in ("workers", "headline", "verdicts")
    }
    names = [worker.worker for worker in figures.workers]
    return rounded(  # type: ignore[no-any-return]
        job_line(job, figures)
        | {
            "attempt": summary.attempt,
            "exchange": phrases.exchange(summary.exchange, summary.attempt, summary.group_size),
            "group_size": summary.group_size,
            "group_changes": [change_values(change) for change in job.changes],
            "group_changes_text": phrases.group_changes(job.changes),
            "behind": job.behind,
            "policy": summary.policy,
            "predictor": summary.predictor,
            "mode": summary.mode,
            "batch_size": summary.batch_size,
            "first_size": spec.total_batch_size,
            "sizer": summary.sizer,
            "sizing": summary.sizing,
            "dataset_size": spec.dataset_size,
            "micro_batch": spec.micro_batch,
            "seed": spec.seed,
            "figures": numbers,
            "speedup_doubt": figures.speedup_doubt,
            "saved_text": ", ".join(
                filter(None, (phrases.saved(figures.saved_seconds), figures.saved_doubt))
            ),
            # All workers, in order; None where they are too many to be drawn one by one.
            "names": sorted(names) if len(names) <= _FEW else None,
            "straggler": _straggler(figures),
            "slowest": figures.workers[0].worker if figures.workers else None,
            "member_states": dict(Counter(member.state for member in job.members)),
            "events": [{"at": event.at, "text": event.text} for event in condensed(job.events)[-_EVENTS:]],
        }
    )


def _straggler(figures: JobFigures) -> dict[str, str] | None:
    """Return the worker that slows the others most, and what the balancer does about it."""
    for worker in figures.workers:
        if worker.verdict in ("chronic", "passing"):
            return {
                name: getattr(worker, name) for name in ("worker", "verdict", "verdict_text", "balanced_text")
            }
    return None


def worker_rows(job: FollowedJob, figures: JobFigures) -> list[dict[str, Any]]:
    """Return a row for each worker of the last iterations, and for each member without an iteration yet."""
    members = {member.worker: member for member in job.members}
    rows = [asdict(worker) for worker in figures.workers]
    seen = {worker.worker for worker in figures.workers}
    for name, member in members.items():
        if name not in seen:
            nothing: dict[str, Any] = dict.fromkeys([*WorkerFigures.__dataclass_fields__, *SHOWN])
            spread = {"minimum": None, "median": None, "maximum": None}
            parts = {"computing": None, "communicating": None, "waiting": None}
            texts = {"verdict": "", "verdict_text": "has finished no iteration yet", "balanced_text": ""}
            rows.append(
                nothing
                | texts
                | {"worker": name, "state": member.state, "seconds_per_sample": spread, "time_parts": parts}
            )
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
