"""What a job waits for, in words: who or what is missing, and what to do about it.

The sentences have no figures that change by themselves, such as seconds, so that a reader of two of them sees
whether anything has changed. Must not know who reads them.
"""

from collections.abc import Collection
from math import inf

from batchsize_manager.job.job import Job

_NAMED = 5  # names that are listed at most


def awaited(job: Job) -> str:
    """Return what a job waits for before it can give its members their next assignments."""
    members, attempts = job.members, job.attempts
    refused = "".join(f"; {worker} was refused: {why}" for worker, why in job.refused.items())
    if attempts.is_recovering:
        late = [n for n, m in members.by_name.items() if not (m.has_arrived(attempts.number) or m.suspended)]
        said = f"attempt {attempts.number} has begun, since {attempts.why_recovering}"
        if members.has_formed_groups and members.started:
            if late:
                return f"{said}: {names(late)} {_have(late)} not come to its group yet{refused}"
            if not job.regrouping.waits_for_state:
                return f"{said}: {job.planner.lack}: start other workers{refused}"
            away = [n for n, m in members.by_name.items() if m.suspended] + members.away(-inf)
            return (
                f"{said}: nobody has the training's state but maybe {names(away)}, of which nothing is heard"
                f"{refused}"
            )
        return f"{said}: the first worker to reach it says where it goes on{refused}"
    if job.operations.paused:
        return "an operator has paused the job; `evenpace job resume` lets it go on"
    if not members.started:
        lacking = members.wanted - len(members)
        return (
            f"{len(members)} of {members.wanted} workers have joined ({names(members)}): start the other "
            f"{'one' if lacking == 1 else lacking}, or have the job begin with fewer (`evenpace job resize`, "
            f"`evenpace manager --workers`){refused}"
        )
    if job.presence.awaited_until is not None:
        return f"{job.planner.lack}: start other workers{refused}"
    iteration = job.iterations.first_open
    first = job.iterations.progress.get(iteration)
    missing = [] if first is None else [n for n, parts in first.open.items() if n in members and parts]
    if missing:
        between = [name for name in missing if members.by_name[name].is_between]
        verb = "does" if len(between) == 1 else "do"
        why = f"; {names(between)} {verb} something else between two batches" if between else ""
        return f"{names(missing)} {_have(missing)} not reported iteration {iteration}{why}{refused}"
    if attempts.wanted:
        return f"another group is to be formed, since {attempts.wanted}{refused}"
    return f"the next iteration, {job.iterations.planned}, is not planned yet{refused}"


def names(workers: Collection[str]) -> str:
    """Return workers' names, the first few of them, in words."""
    listed = list(workers)
    if not listed:
        return "none"
    if len(listed) > _NAMED:
        return f"{', '.join(listed[:_NAMED])} and {len(listed) - _NAMED} more"
    return " and ".join(filter(None, (", ".join(listed[:-1]), listed[-1])))


def _have(workers: Collection[str]) -> str:
    return "has" if len(workers) == 1 else "have"
