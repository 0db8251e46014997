"""Who has what of a shared cluster, and who waits for what, in rows of words for tables.

They are made of what `evenpace cluster status --json` prints, which is `now` in all that follows.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from evenpace.overview import phrases


class NodeRow(NamedTuple):
    """A node."""

    node: str
    host: str
    devices: int
    used: int
    state: str  # empty where it stays


class JobRow(NamedTuple):
    """A job."""

    job: str
    owner: str
    state: str
    weight: str
    devices: str  # what it has, and shall have
    most: int  # devices that it can use
    where: str
    lasts: str  # how long it has been in this state
    since: float  # seconds since 1970
    why: str  # it is in this state, and what it waits for


def node_rows(now: Mapping[str, Any]) -> list[NodeRow]:
    """Return a row for each node."""
    return [
        NodeRow(
            node["node"][:8],
            node["host"],
            node["devices"],
            node["used"],
            "is about to go" if node["leaving"] else "",
        )
        for node in now["nodes"]
    ]


def job_rows(now: Mapping[str, Any], ended: int | None) -> list[JobRow]:
    """Return a row for each job, of those that have ended for the last `ended` ones, or for all."""
    over = [job["job"] for job in now["jobs"] if job["state"] == "ended"]
    left_out = set(over[: max(0, len(over) - ended)]) if ended is not None else set()
    return [_job_row(job, now) for job in now["jobs"] if job["job"] not in left_out]


def _job_row(job: Mapping[str, Any], now: Mapping[str, Any]) -> JobRow:
    hosts = {node["node"]: node["host"] for node in now["nodes"]}
    where = [hosts.get(node, node[:8]) for node, _ in job["workers"].values()]
    since = job["since"] or job["ended"] or job["submitted"]
    return JobRow(
        job["job"],
        job["owner"] or "",
        job["how"] if job["state"] == "ended" else job["state"],
        f"{job['weight']:g}",
        str(len(where)) if len(where) == job["target"] else f"{len(where)} → {job['target']}",
        job["most"],
        ", ".join(f"{where.count(host)} on {host}" for host in dict.fromkeys(where)),
        phrases.seconds(now["now"] - since),
        since,
        "; ".join(filter(None, (job["why"], waits_for(job, now)))),
    )


def standing(job: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return how a job is, and why, in a sentence."""
    row = _job_row(job, now)
    return f"job {row.job} is {row.state}{row.why and ': '}{row.why}"


def queue(now: Mapping[str, Any]) -> list[str]:
    """Return the names of the jobs that wait for devices, in order of submission."""
    waiting = [job for job in now["jobs"] if job["place"] is not None]
    return [job["job"] for job in sorted(waiting, key=lambda job: job["place"])]


def waits_for(job: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return what a job waits for in words; nothing where it has devices, or shall have none."""
    if job["place"] is None:
        return ""
    if not now["nodes"]:
        return f"waits for a node with {now['device']}"
    holders = [f"{other['job']} has {len(other['workers'])}" for other in now["jobs"] if other["workers"]]
    total = sum(node["devices"] for node in now["nodes"])
    had = ", ".join(holders) or "all are free"
    return f"number {job['place']} of {len(queue(now))} that wait; of {total} devices {had}"


def in_use(now: Mapping[str, Any]) -> str:
    """Return the share of devices that jobs have, and have had."""
    used, begun = now["utilisation"], phrases.seconds(now["now"] - now["begun"])
    present, past = ("–" if used[name] is None else f"{used[name]:.0%}" for name in ("now", "all"))
    return f"{present} now, {past} since the record began {begun} ago"
