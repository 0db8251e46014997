"""How a cluster is shared at a moment, as JSON can hold it."""

from collections.abc import Mapping
from typing import Any

from scheduler.cluster.history import Account
from scheduler.cluster.machine import ClusterMachine


def status_of(machine: ClusterMachine, past: Account, hosts: Mapping[str, str]) -> dict[str, Any]:
    """Return what nodes and jobs have, and who waits.

    Args:
        past: What the record says until now.
        hosts: Addresses of nodes, by name.
    """
    used = [lease.node for job in machine.jobs.values() for lease in job.leases.values()]
    # Of one that ended long ago, the record may not be there any more.
    since = {life.job: (life.since, life.why) for life in past.lives}
    waiting = [name for name, job in machine.jobs.items() if job.counts and not job.leases]
    devices = sum(node.devices for node in machine.nodes.values())
    return {
        "now": past.now,
        "begun": past.began,
        "utilisation": {"now": len(used) / devices if devices else None, "all": past.utilisation},
        "nodes": [
            {
                "node": name,
                "host": hosts.get(name, ""),
                "kind": node.kind,
                "devices": node.devices,
                "used": used.count(name),
                "leaving": name in machine.leaving,
            }
            for name, node in machine.nodes.items()
        ],
        "jobs": [
            {
                "job": name,
                "owner": job.request.owner,
                "state": job.state,
                "held": job.held,
                **dict(zip(("since", "why"), since.get(name, (job.ended, "")), strict=True)),
                "place": waiting.index(name) + 1 if name in waiting else None,
                "weight": job.request.weight,
                "most": job.request.devices,
                "target": sum(count for _, count in machine.target.get(name, ())),
                "workers": {worker: [its.node, its.phase] for worker, its in job.leases.items()},
                "attempt": job.attempt,
                "submitted": job.submitted,
                "started": job.started,
                "ended": job.ended,
                "how": job.how,
                "reason": job.reason,
            }
            for name, job in machine.jobs.items()
        ],
    }
