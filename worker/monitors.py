"""How busy the machine is, as seen by this worker: right in containers and under quotas too.

The balancer's predictors are fed with these figures. This module must not know of sessions, of
the wire, or of whoever else uses the machine: it measures the share that is taken, by anybody.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import psutil

from worker import cgroups
from worker.cgroups import Group


@dataclass(frozen=True)
class Usage:
    """How much of what this process may use was in use.

    Attributes:
        cpu: Busy share of the CPU capacity, from 0 to 1.
        memory: Occupied share of the memory, from 0 to 1.
    """

    cpu: float
    memory: float


@dataclass(frozen=True)
class _CpuLevel:
    """A group that may carry a quota, and the group that counts the same processes' CPU time."""

    group: Group
    counter: Group | None

    def seconds(self) -> float | None:
        """Return the CPU time used so far, by this process alone where nothing counts the group."""
        return cgroups.cpu_seconds(self.counter) if self.counter else time.process_time()


class ResourceMonitor:
    """Samples how busy the CPUs and the memory are that this process may use.

    Capacity is the CPUs of the process's affinity mask, or the quota of a control group above it
    where that is smaller. A sample costs about 0.1 ms of CPU. One thread uses a monitor at a time.

    Args:
        root: The directory below which `/proc` and the mounts of the control groups are looked up.
            What psutil reports (affinity, the host's CPU times and memory) is always the machine's.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._membership: str | None = None
        self._cpu_levels: list[_CpuLevel] = []
        self._memory_levels: list[Group] = []
        # Both are what the counters showed last: (busy, all) seconds per CPU of the host, and
        # (wall-clock, CPU) seconds per group.
        self._host_times = _host_times()
        self._group_times: dict[Path, tuple[float, float]] = {}
        self._busy_cpus = 0.0
        self.sample()

    def sample(self) -> Usage:
        """Return the usage since the previous call (the first time: since construction).

        Returns:
            Shares that are finite and lie in [0, 1].
        """
        self._locate()
        cpus = _affinity()
        busy = max(self._busy_share_of_cpus(cpus), self._busy_share_of_quota(len(cpus)))
        return Usage(cpu=_share(busy), memory=_share(self._memory_share()))

    def _locate(self) -> None:
        """Find the groups' files; only anew where the process has been moved since."""
        membership = cgroups.membership(root=self._root)
        if membership == self._membership:
            return
        self._membership = membership
        self._cpu_levels = _cpu_levels(membership, self._root)
        memory = cgroups.find_group("memory", membership, self._root)
        self._memory_levels = memory.lineage() if memory else []
        self._group_times.clear()

    def _busy_share_of_cpus(self, cpus: list[int]) -> float:
        before, now = self._host_times, _host_times()
        # A container may be shown fewer CPUs than the mask's numbers say: then all that it sees.
        shown = [cpu for cpu in cpus if cpu < min(len(before), len(now))]
        pairs = [(before[cpu], now[cpu]) for cpu in shown] or list(zip(before, now, strict=False))
        total = sum(new[1] - old[1] for old, new in pairs)
        # The kernel counts in ticks of 10 ms: until one has passed, the last figure stands.
        if total > 0:
            self._busy_cpus = sum(new[0] - old[0] for old, new in pairs) / total
            self._host_times = now
        return self._busy_cpus

    def _busy_share_of_quota(self, cpus: int) -> float:
        """Return the largest share used of a quota on the way up, 0 if none binds."""
        shares = [0.0]
        for level in self._cpu_levels:
            quota = cgroups.cpu_quota(level.group)
            if quota is None or quota >= cpus:
                continue
            used, now = level.seconds(), monotonic()
            if used is None:
                continue
            then, used_then = self._group_times.get(level.group.path, (now, used))
            self._group_times[level.group.path] = (now, used)
            if now > then:
                shares.append((used - used_then) / ((now - then) * quota))
        return max(shares)

    def _memory_share(self) -> float:
        host = psutil.virtual_memory()
        shares = [1 - host.available / host.total]
        for group in self._memory_levels:
            limit = cgroups.memory_limit(group)
            in_use = cgroups.memory_in_use(group) if limit else None
            if limit and in_use is not None:
                shares.append(in_use / limit)
        return max(shares)


def available_cpus(root: Path = Path("/")) -> float:
    """Return how many cores this process may use: its affinity mask's, or its quota where smaller.

    Args:
        root: As for `ResourceMonitor`.

    Returns:
        Cores, possibly a fraction of one; positive.
    """
    levels = _cpu_levels(cgroups.membership(root=root), root)
    quotas = [cgroups.cpu_quota(level.group) for level in levels]
    return min([float(len(_affinity())), *(quota for quota in quotas if quota is not None)])


def _cpu_levels(membership: str, root: Path) -> list[_CpuLevel]:
    group = cgroups.find_group("cpu", membership, root)
    if group is None:
        return []
    counter = group if group.version == 2 else cgroups.find_group("cpuacct", membership, root)
    # Version 1 may count in a hierarchy of its own, where the process may be in another group.
    if counter is None or counter.inner_path != group.inner_path:
        return [_CpuLevel(level, None) for level in group.lineage()]
    return [_CpuLevel(level, count) for level, count in zip(group.lineage(), counter.lineage(), strict=True)]


def _affinity() -> list[int]:
    """Return the numbers of the CPUs that this process may run on."""
    process = psutil.Process()
    if hasattr(process, "cpu_affinity"):  # not on macOS
        return process.cpu_affinity()
    return list(range(psutil.cpu_count() or 1))


def _host_times() -> list[tuple[float, float]]:
    """Return (busy, all) seconds of each CPU; time stolen by a hypervisor is busy to us."""
    times = []
    for cpu in psutil.cpu_times(percpu=True):
        # Linux counts guests' time into "user" and "nice" already.
        guests = getattr(cpu, "guest", 0.0) + getattr(cpu, "guest_nice", 0.0)
        total = sum(cpu) - guests
        times.append((total - cpu.idle - getattr(cpu, "iowait", 0.0), total))
    return times


def _share(value: float) -> float:
    return min(max(value, 0.0), 1.0)
