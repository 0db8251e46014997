"""Members that are dead, silent or late: decided from what they have sent and when, without a clock.

A straggler is none of these: it still sends heartbeats, and the time that it has for a report grows with the
time that iterations take.
"""

import itertools
import math
from collections.abc import Iterator, Mapping

from batchsize_manager.job.config import JobConfig
from batchsize_manager.job.members import Member
from batchsize_manager.job.progress import IterationProgress

_PATIENCE = 10  # typical durations of an iteration, for which others wait for a report at least


def gone(members: Mapping[str, Member], now: float) -> list[str]:
    """Return the members whose connection broke, and that did not come back in time."""
    return [name for name, m in members.items() if m.back_by is not None and now >= m.back_by]


def absent(members: Mapping[str, Member], absence: float, now: float) -> list[str]:
    """Return the suspended members that have been silent for `absence` seconds."""
    return [name for name, m in members.items() if m.suspended and now - m.heard_at >= absence]


def silent(
    members: Mapping[str, Member], progress: Mapping[int, IterationProgress], silence: float, now: float
) -> list[str]:
    """Return the members with something to do that have sent no heartbeat for `silence` seconds.

    A member that has neither sent nor promised heartbeats is never silent. Where nothing was heard of any
    member, none is returned: the fault lies in the manager's own connection rather than in all of them.
    """
    there = {name: m for name, m in members.items() if not m.suspended}
    if all(now - m.heard_at >= silence for m in there.values()):
        return []
    return [
        name
        for name, m in there.items()
        if m.beats
        and now - m.heard_at >= silence
        and any(name in under_way.open for under_way in progress.values())
    ]


def is_between(member: Member, config: JobConfig, now: float) -> bool:
    """Return whether a member lives, and its script does something else between two batches."""
    return member.is_between and now - member.heard_at < max(config.silence, config.report_timeout)


def missing(
    members: Mapping[str, Member], attempt: int, config: JobConfig, now: float
) -> tuple[list[str], list[str]]:
    """Return the members that others wait for at a rendezvous in vain: the silent, and the late.

    As for `silent`, none is silent where nothing was heard of any. A suspended member is late only while it
    is heard of. One whose connection broke is neither: it is dead if it does not come back in time (`gone`).

    Args:
        members: The members by name.
        config: The job's: `silence` has the seconds without a heartbeat, after which a member is silent, and
            `report_timeout` those after which it is late, since it joined or last reported, and the first has
            arrived.
    """
    silence = config.silence
    arrived = [m.arrival.at for m in members.values() if m.arrival is not None and m.has_arrived(attempt)]
    if not arrived:
        return [], []  # nobody waits
    since = min(arrived)
    waited_for = {n: m for n, m in members.items() if not m.has_arrived(attempt) and m.back_by is None}
    quiet = {n for n, m in waited_for.items() if (m.beats or m.suspended) and now - m.heard_at >= silence}
    late = [
        name
        for name, member in waited_for.items()
        if now - max(since, member.joined_at, member.reported_at) >= config.report_timeout
        and not (member.suspended and name in quiet)
        and not is_between(member, config, now)
    ]
    if all(m.suspended or now - m.heard_at >= silence for m in members.values()):
        return [], late
    return [n for n, m in waited_for.items() if n in quiet and n not in late and not m.suspended], late


def overdue(
    members: Mapping[str, Member],
    progress: Mapping[int, IterationProgress],
    planned: int,
    report_timeout: float,
    typical: float,
    now: float,
) -> Iterator[tuple[str, int]]:
    """Yield each member that others have waited for too long, and the iteration that it has to report.

    Of a piece, its member is overdue whether or not others wait: until the piece is reported, its iteration
    cannot end, and members that wait for that at the shards are not seen here.

    Args:
        members: The members by name.
        progress: The iterations under way, by number.
        planned: The first iteration that is not planned.
        report_timeout: Seconds that others wait for a report, at least.
        typical: Seconds that an iteration typically takes.
    """
    before = now - max(report_timeout, _PATIENCE * typical)
    since: dict[int, float] = {}  # iteration to the time since when others are done with it
    for name, member in members.items():
        if member.suspended or member.reported_at > before:
            continue
        iteration = member.assigned
        earlier = progress.get(iteration - 1)
        if earlier is not None and earlier.has_piece(name):
            patience = _PATIENCE * earlier.expected_seconds(name)
            if member.reported_at <= min(before, now - patience):
                yield name, iteration - 1
            continue
        if iteration >= planned:
            continue  # it waits itself
        if iteration not in since:
            since[iteration] = waited_since(iteration, members, progress)
        if since[iteration] <= before:
            yield name, iteration


def waited_since(
    iteration: int, members: Mapping[str, Member], progress: Mapping[int, IterationProgress]
) -> float:
    """Return since when any member has waited for others to report an iteration; infinity if none waits.

    Args:
        iteration: A planned iteration.
        members: The members by name.
        progress: The iterations under way, by number.
    """
    under_way = progress.get(iteration)
    if under_way is None:
        return -math.inf  # so long ago that it is forgotten
    there = {name: m for name, m in members.items() if not m.suspended}
    reported = (
        done[-1].arrival
        for name, done in under_way.done.items()
        if name in there and there[name].ready <= iteration and name not in under_way.open
    )
    # A member that joined later, or came back after others had got its part, has no part and waits at once.
    without = (
        member.joined_at
        for name, member in there.items()
        if member.ready > iteration or (name not in under_way.open and name not in under_way.done)
    )
    return min(itertools.chain(reported, without), default=math.inf)
