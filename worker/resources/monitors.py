"""The shares of CPU and memory that other processes take from this worker, in containers and quotas too.

These figures are inputs of the balancer's predictors. This module must not know of sessions, of the wire, or
of the other processes' identity.
"""

import threading
from collections import deque
from dataclasses import dataclass
from math import inf
from pathlib import Path
from time import monotonic, process_time

import psutil

from worker.resources import cgroups
from worker.resources.cgroups import Cgroup

_INTERVAL = 0.1  # seconds between readings of the counters, and at least between samples
_WINDOW = 0.2  # seconds that a sample covers, if the computing has lasted that long


@dataclass(frozen=True)
class Usage:
    """Usage of the CPU capacity and memory that this process may use.

    Attributes:
        cpu: Share of the CPU capacity that others take, 0 to 1. An equal competitor on this process's only
            CPU, or within its quota, takes one half.
    """

    cpu: float
    memory: float  # occupied share of the memory, by any process, 0 to 1


@dataclass(frozen=True)
class _CpuLevel:
    """A group that may carry a quota, and the group that counts the same processes' CPU time."""

    group: Cgroup
    counter: Cgroup | None


@dataclass(frozen=True)
class _Counters:
    """One reading of the counters, in seconds."""

    at: float  # on the clock
    own: float  # CPU time of this process
    host: list[tuple[float, float]]  # (busy, all) of each CPU
    groups: dict[Path, float]  # CPU time of each group that has a quota and a counter


class ResourceMonitor:
    """Measures the shares that others take of the CPUs and the memory that this process may use.

    Capacity is the CPUs of the process's affinity mask, or the quota of a control group above it where that
    is smaller. Others are all processes but this one: beside it on its CPUs, or with it within a quota.

    A speed predictor needs the usage *now*, at the end of an iteration, rather than the average since the
    last: so while computing, a thread reads the counters every 0.1 s (0.2 ms of CPU time each), and a sample
    covers the last 0.2 s. Iterations that are shorter than 0.1 s share a sample, which would cost them more
    than it tells: the kernel counts in ticks of 10 ms.

    Args:
        root: The directory below which `/proc` and the mounts of the control groups are looked up.
            The figures of psutil (affinity, the host's CPU times and memory) are always the machine's.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._sampled = -inf, Usage(0.0, 0.0)  # when, and the sample
        self._membership: str | None = None
        self._cpu_levels: list[_CpuLevel] = []
        self._memory_levels: list[Cgroup] = []
        self._busy_cpus = 0.0  # cores of the affinity mask, as seen last
        self._lock = threading.Lock()
        self._computing = threading.Event()
        self._closed = False
        self._thread: threading.Thread | None = None
        self._readings: deque[_Counters] = deque([self._read_counters()])  # oldest first

    def resume(self) -> None:
        """Begin to measure, as computing begins: usage while this process waits does not affect its speed."""
        with self._lock:
            if monotonic() >= self._readings[0].at + _INTERVAL:
                self._readings = deque([self._read_counters()])
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="resource monitor", daemon=True)
            self._thread.start()
        self._computing.set()

    def record_counters(self) -> None:
        """Read the counters now; while computing, a thread does so every 0.1 s."""
        with self._lock:
            self._readings.append(self._read_counters())
            while len(self._readings) > 2 and self._readings[2].at <= self._readings[-1].at - _WINDOW:
                self._readings.popleft()

    def sample(self) -> Usage:
        """Return the usage over the last 0.2 s, or since `resume` or the last sample if that is less.

        Within 0.1 s of a sample, it is that one again. Without `resume`, it is the usage since the last
        sample or, the first time, since construction.

        Returns:
            Shares that are finite and lie in [0, 1].
        """
        self._computing.clear()
        at, usage = self._sampled
        if monotonic() < at + _INTERVAL:
            return usage
        with self._lock:
            now = self._read_counters()
            while len(self._readings) > 1 and self._readings[1].at <= now.at - _WINDOW:
                self._readings.popleft()
            taken = self._taken(self._readings[0], now)
            self._readings = deque([now])
            usage = Usage(cpu=_share(taken), memory=_share(self._memory_share()))
        self._sampled = now.at, usage
        return usage

    def close(self) -> None:
        """Stop the thread."""
        self._closed = True
        self._computing.set()

    def _watch(self) -> None:
        pause = threading.Event()
        while self._computing.wait() and not self._closed:
            pause.wait(_INTERVAL)
            self.record_counters()

    def _read_counters(self) -> _Counters:
        self._locate()
        groups = {}
        for level in self._cpu_levels:
            if level.counter and cgroups.cpu_quota(level.group) is not None:
                used = cgroups.cpu_seconds(level.counter)
                if used is not None:
                    groups[level.group.path] = used
        return _Counters(monotonic(), process_time(), _host_times(), groups)

    def _locate(self) -> None:
        """Find the groups' files, if the process has moved to other groups since the last time."""
        membership = cgroups.membership(root=self._root)
        if membership == self._membership:
            return
        self._membership = membership
        self._cpu_levels = _cpu_levels(membership, self._root)
        memory = cgroups.find_group("memory", membership, self._root)
        self._memory_levels = memory.lineage() if memory else []

    def _taken(self, then: _Counters, now: _Counters) -> float:
        """Return the share of the capacity that others have taken between two readings."""
        seconds = now.at - then.at
        own = (now.own - then.own) / seconds if seconds > 0 else 0.0
        cpus = _affinity()
        # For each bound on this process: the cores within it, and how many of these others use.
        bounds = [(float(len(cpus)), self._busy(then, now, cpus) - own)]
        for level in self._cpu_levels:
            quota = cgroups.cpu_quota(level.group)
            if quota is None or quota >= len(cpus):
                continue
            path, others = level.group.path, 0.0
            if seconds > 0 and path in then.groups and path in now.groups:
                others = (now.groups[path] - then.groups[path]) / seconds - own
            bounds.append((quota, others))
        capacity = min(cores for cores, _ in bounds)
        free = min(cores - max(0.0, others) for cores, others in bounds)
        return 1 - free / capacity

    def _busy(self, then: _Counters, now: _Counters, cpus: list[int]) -> float:
        """Return the cores of the affinity mask that were in use, by any process."""
        # A container may be shown fewer CPUs than the mask's numbers say: then all that it sees.
        shown = [cpu for cpu in cpus if cpu < min(len(then.host), len(now.host))]
        pairs = [(then.host[cpu], now.host[cpu]) for cpu in shown]
        pairs = pairs or list(zip(then.host, now.host, strict=False))
        total = sum(new[1] - old[1] for old, new in pairs)
        # The kernel counts in ticks of 10 ms: until one has passed, the last figure stands.
        if total > 0:
            self._busy_cpus = len(cpus) * sum(new[0] - old[0] for old, new in pairs) / total
        return self._busy_cpus

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
    """Return (busy, all) seconds of each CPU; time stolen by a hypervisor counts as busy."""
    times = []
    for cpu in psutil.cpu_times(percpu=True):
        # Linux counts guests' time into "user" and "nice" already.
        guests = getattr(cpu, "guest", 0.0) + getattr(cpu, "guest_nice", 0.0)
        total = sum(cpu) - guests
        times.append((total - cpu.idle - getattr(cpu, "iowait", 0.0), total))
    return times


def _share(value: float) -> float:
    return min(max(value, 0.0), 1.0)
