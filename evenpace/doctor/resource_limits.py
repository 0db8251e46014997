"""Checks of this process's limits: open files, processes, CPUs, threads, and memory."""

import math
import os
import resource
import shutil
from collections.abc import Iterator

import psutil

from evenpace.doctor.findings import GIB, MIB, Finding, Subject, judged, note, ok, problem, size, warning
from rpc.limits import ServerLimits
from worker.resources import cgroups
from worker.resources.cgroups import Cgroup
from worker.resources.cpu_limits import kind_here
from worker.resources.monitors import available_cpus

_OTHER_FILES = 1000  # besides connections, as in `evenpace.serve`
_FEW_FILES = 256
_FEW_PROCESSES = 512
_LITTLE_SHARED = 256 * MIB  # container engines give 64 MiB
_LITTLE_FREE = 0.1
_PERIOD = 0.05  # seconds; with a longer period of the quota, times of short iterations are mostly noise


def open_files(subject: Subject) -> Iterator[Finding]:
    """Check RLIMIT_NOFILE: each connection of a service is an open file."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    connections = ServerLimits().connections
    do = "raise it: `ulimit -n`, LimitNOFILE= of a systemd unit, or --ulimit nofile= of a container"
    if hard == resource.RLIM_INFINITY or hard >= connections + _OTHER_FILES:
        yield ok("open files", f"{_count(hard)} allowed, enough for {connections} connections")
    elif hard < _FEW_FILES:
        yield problem("open files", f"{hard} allowed, too few for services and loading processes", do)
    else:
        room = max(0, hard - _OTHER_FILES) or hard // 2
        yield warning("open files", f"{hard} allowed, enough for {room} connections of a service here", do)


def processes(subject: Subject) -> Iterator[Finding]:
    """Check RLIMIT_NPROC and the control group's limit of processes, which count threads, too."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    bounds = [] if soft == resource.RLIM_INFINITY else [(soft, "ulimit -u")]
    group = _group(subject, "pids")
    for level in group.lineage() if group else ():
        try:
            text = (level.path / "pids.max").read_text().strip()
        except OSError:
            continue
        if text.isdecimal():
            bounds.append((int(text), "the control group's pids.max"))
    if not bounds:
        yield ok("processes", "not limited")
        return
    fewest, which = min(bounds)
    yield judged(
        "processes",
        f"{fewest} processes and threads allowed, by {which}",
        fine=fewest >= _FEW_PROCESSES,
        advice="raise it: each library has threads",
    )


def cpu(subject: Subject) -> Iterator[Finding]:
    """Compare the CPUs of the affinity mask with the quota of control groups."""
    mask, all_of_them = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    quota = _quota(subject)
    if quota is None or quota[0] >= mask:
        yield ok("CPU", f"{mask} of {all_of_them} CPUs" if mask < all_of_them else f"{mask} CPUs, no quota")
        return
    cores, group = quota
    period = _period(group)
    summary = f"a quota of {cores:g} cores on {mask} CPUs"
    if period is not None and period > _PERIOD and cores < mask:
        yield note(
            "CPU",
            f"{summary}, over periods of {period * 1e3:g} ms",
            "iterations shorter than some periods are measured with much noise: use a period of 10 ms",
        )
    else:
        yield ok("CPU", summary)


def cpu_limits(subject: Subject) -> Iterator[Finding]:
    """Limit a process of our own for a moment, as `--cpu-share` limits workers."""
    try:
        yield ok("CPU limits", f"set by {kind_here('cgroup')}")
    except OSError as error:
        yield note("CPU limits", "set by stopping and continuing processes, which is coarser", str(error))


def threads(subject: Subject) -> Iterator[Finding]:
    """Compare the number of threads that frameworks start with the cores that they may use."""
    mask, cores = len(os.sched_getaffinity(0)), math.ceil(available_cpus(subject.root))
    text = os.environ.get("OMP_NUM_THREADS", "")
    if text and not text.partition(",")[0].isdecimal():
        yield warning("threads", f"OMP_NUM_THREADS is {text!r}, no number", f"set OMP_NUM_THREADS={cores}")
    elif text and int(text.partition(",")[0]) > cores:
        yield warning(
            "threads",
            f"OMP_NUM_THREADS={text}, but {cores} cores may be used",
            f"set OMP_NUM_THREADS={cores}: threads that wait for each other's cores slow each other down",
        )
    elif text:
        yield ok("threads", f"OMP_NUM_THREADS={text} on {cores} cores")
    elif cores < mask:
        yield warning(
            "threads",
            f"OMP_NUM_THREADS is not set: {mask} threads would share a quota of {cores} cores",
            f"set OMP_NUM_THREADS={cores}",
        )
    else:
        yield ok("threads", f"OMP_NUM_THREADS is not set: a thread for each of {cores} cores")


def memory(subject: Subject) -> Iterator[Finding]:
    """Check the free memory, within the control group's limit."""
    whole = psutil.virtual_memory()
    total, free, which = whole.total, whole.available, "of this machine's"
    group = _group(subject, "memory")
    for level in group.lineage() if group else ():
        limit, used = cgroups.memory_limit(level), cgroups.memory_in_use(level)
        if limit is not None and used is not None and limit - used < free:
            total, free, which = limit, max(0, limit - used), "of the control group's"
    summary = f"{size(free)} {which} {size(total)} are free"
    do = "give it more, or see what takes it: training may be killed"
    yield judged("memory", summary, fine=free >= min(_LITTLE_FREE * total, GIB), advice=do)


def shared_memory(subject: Subject) -> Iterator[Finding]:
    """Check the room in /dev/shm, through which loading processes pass batches."""
    folder = subject.root / "dev/shm"
    do = "give it more: --shm-size=1g of a container, or mount -o remount,size=1G /dev/shm"
    if not folder.is_dir():
        yield warning("shared memory", "there is no /dev/shm", do)
        return
    usage = shutil.disk_usage(folder)
    summary = f"{size(usage.free)} of {size(usage.total)} are free in /dev/shm"
    if usage.free < _LITTLE_SHARED:
        yield warning("shared memory", f"{summary}, little for loaders with num_workers", do)
    else:
        yield ok("shared memory", summary)


def _group(subject: Subject, controller: str) -> Cgroup | None:
    return cgroups.find_group(controller, cgroups.membership(root=subject.root), subject.root)


def _quota(subject: Subject) -> tuple[float, Cgroup] | None:
    """Return the smallest quota in cores, and the group that has it; None without a quota."""
    group = _group(subject, "cpu")
    quotas = [(cgroups.cpu_quota(level), level) for level in (group.lineage() if group else ())]
    set_ones = [(quota, level) for quota, level in quotas if quota is not None]
    return min(set_ones, key=lambda one: one[0], default=None)


def _period(group: Cgroup) -> float | None:
    """Return the seconds of a quota's period; None if it cannot be read."""
    try:
        if group.version == 2:
            return int((group.path / "cpu.max").read_text().split()[1]) / 1e6
        return int((group.path / "cpu.cfs_period_us").read_text()) / 1e6
    except (OSError, ValueError, IndexError):
        return None


def _count(limit: int) -> str:
    return "any number" if limit == resource.RLIM_INFINITY else str(limit)
