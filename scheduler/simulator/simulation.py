"""The loop of a simulation: jobs train for an interval, then the policy gives out the devices."""

from collections.abc import Mapping, Sequence

from scheduler.allocation import Allocation, Placement
from scheduler.cluster import Cluster
from scheduler.policies.base import Policy, Round
from scheduler.simulator.applications import Application
from scheduler.simulator.record import Life
from scheduler.simulator.rules import Rules
from scheduler.simulator.training import SimulatedJob
from scheduler.simulator.workloads import Arrival


def simulate(
    arrivals: Sequence[Arrival],
    applications: Mapping[str, Application],
    policy: Policy,
    cluster: Cluster,
    rules: Rules,
) -> list[Life]:
    """Simulate all jobs to their end, and return their lives in the order of submission.

    Args:
        arrivals: The jobs; of those that come at one time the earlier in this order is the first.
        applications: The models, by name.
        policy: A new one, for this simulation alone.
        cluster: Nodes of devices of the kinds that were measured.
        rules: Interval and cost of a change.

    Raises:
        ValueError: Two jobs have one name, a model is unknown, a job asks for more devices than there are or
            for a batch that was not measured, or the policy gives away what the cluster does not have, or
            devices of two kinds to one job.
    """
    arrivals = sorted(arrivals, key=lambda arrival: arrival.submitted)
    check_arrivals(arrivals, applications, policy, cluster)
    nodes = {kind: max(node.devices for node in cluster.nodes if node.kind == kind) for kind in cluster.kinds}
    jobs = [
        SimulatedJob(
            arrival,
            applications[arrival.application],
            rules,
            asks_devices=policy.users_choose_devices,
            asks_batch=policy.users_choose_batch,
            limits_batch=policy.users_limit_batch,
        )
        for arrival in arrivals
    ]
    waiting = jobs[::-1]  # the next to arrive is the last
    present: list[SimulatedJob] = []
    allocation = Allocation()
    now = 0
    while waiting or present:
        for job in present:
            job.advance(now, rules.interval)
        now += rules.interval
        present = [job for job in present if job.life.ended is None]
        while waiting and waiting[-1].life.submitted <= now:
            present.append(waiting.pop())
        if present:
            before = Allocation({job.life.name: allocation[job.life.name] for job in present})
            seen = [job.seen(now, nodes) for job in present]
            allocation = policy.allocate(Round(now, seen, cluster, before))
            allocation.check(cluster)
            for job in present:
                if allocation[job.life.name] != before[job.life.name]:
                    placement = allocation[job.life.name]
                    job.place(placement, now, _kind(job.life.name, placement, cluster))
    return [job.life for job in jobs]


def _kind(name: str, placement: Placement, cluster: Cluster) -> str:
    """Return the kind of a placement's devices, of the cluster's first node's if there are none.

    Raises:
        ValueError: They are of several kinds.
    """
    kinds = {cluster.by_name[node].kind for node, _ in placement} or {cluster.kinds[0]}
    if len(kinds) > 1:
        raise ValueError(f"job {name!r} was given devices of several kinds: {', '.join(sorted(kinds))}")
    return kinds.pop()


def check_arrivals(
    arrivals: Sequence[Arrival], applications: Mapping[str, Application], policy: Policy, cluster: Cluster
) -> None:
    """Check that jobs can be simulated.

    Raises:
        ValueError: Two have one name, a model is unknown, or a job asks for more devices than there are or
            for a batch that was not measured.
    """
    names = [arrival.name for arrival in arrivals]
    if len(set(names)) < len(names):
        raise ValueError(f"two jobs are called {next(name for name in names if names.count(name) > 1)!r}")
    for arrival in arrivals:
        if (model := applications.get(arrival.application)) is None:
            known = ", ".join(sorted(applications))
            raise ValueError(
                f"job {arrival.name!r} trains {arrival.application!r}; the applications are {known}"
            )
        if policy.users_choose_devices and arrival.devices > cluster.devices:
            raise ValueError(
                f"job {arrival.name!r} asks for {arrival.devices} devices; the cluster has {cluster.devices}"
            )
        if policy.users_choose_batch and not model.initial <= arrival.batch <= model.largest:
            raise ValueError(
                f"job {arrival.name!r} asks for batches of {arrival.batch} samples; {model.name} was "
                f"measured with {model.initial} to {model.largest}"
            )
