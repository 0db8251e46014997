"""A process's control groups (cgroups, versions 1 and 2): their places, limits and counters.

This module reads files and changes none. It must not know its callers: monitors and limits both use it. Where
there are no cgroups (not Linux, not mounted) it finds none.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

# Version 1 has no word for "no limit" of memory, it shows the largest number of pages instead.
_V1_UNLIMITED_BYTES = 2**62


@dataclass(frozen=True)
class Cgroup:
    """One control group."""

    version: int  # of the interface: 1 or 2
    top: Path  # where its hierarchy is mounted, as a directory that this process can read
    path: Path  # the group's own directory, `top` or below

    @property
    def inner_path(self) -> PurePosixPath:
        """The path below the mount, "." for the mount's root."""
        return PurePosixPath(self.path.relative_to(self.top))

    def lineage(self) -> list["Cgroup"]:
        """Return this group and its ancestors up to the root of the mount, nearest first."""
        depth = len(self.inner_path.parts)
        paths = [self.path, *self.path.parents][: depth + 1]
        return [Cgroup(self.version, self.top, path) for path in paths]


def membership(pid: int | None = None, root: Path = Path("/")) -> str:
    """Return the text of a process's `/proc/PID/cgroup`: it changes when the process moves.

    Args:
        pid: The process, `None` for this one.
        root: The directory below which `/proc` is looked up.

    Returns:
        The file's text, empty where there is none.
    """
    return _read(root / "proc" / ("self" if pid is None else str(pid)) / "cgroup")


def find_group(controller: str, membership: str, root: Path = Path("/")) -> Cgroup | None:
    """Find the group that holds a process for one controller, such as "cpu" or "memory".

    Inside a container the path that the kernel names may lie outside of what is mounted there; the
    container's own group is then the root of the mount.

    Args:
        membership: What `membership()` returned for the process.
        root: The directory below which `/proc` and the mounts are looked up.

    Returns:
        The group of version 1 where that controller is mounted, else the one of version 2 (whether
        or not the controller is enabled in it), or `None` where neither is mounted.
    """
    paths: dict[str, PurePosixPath] = {}
    for line in membership.splitlines():
        _, names, path = line.split(":", 2)
        paths.update((name, PurePosixPath(path)) for name in names.split(","))
    mounts = list(_mounts(root))
    # A controller belongs to one version at a time: where version 1 has it, version 2 has not.
    for version, name in ((1, controller), (2, "")):
        candidates = [
            _place(version, paths[name], top, top_path)
            for mounted, names, top, top_path in mounts
            if mounted == version and name in names and name in paths
        ]
        if candidates:
            # One hierarchy may be mounted in several places: take the one that shows most of it.
            return max(candidates, key=lambda group: len(group.inner_path.parts))
    return None


def holds_processes(group: Cgroup) -> bool:
    """Return whether a group of version 2, other than the root of all, holds processes.

    The root alone may do so and have children with controllers as well.
    """
    return bool(_read(group.path / "cgroup.type") and _read(group.path / "cgroup.procs"))


def cpu_quota(group: Cgroup) -> float | None:
    """Return the CPU quota that is set on this very group, in cores; `None` where there is none."""
    if group.version == 2:
        quota, _, period = _read(group.path / "cpu.max").partition(" ")
    else:
        quota = _read(group.path / "cpu.cfs_quota_us")
        period = _read(group.path / "cpu.cfs_period_us")
    microseconds, per = _whole(quota), _whole(period)
    return microseconds / per if microseconds and per else None


def cpu_seconds(group: Cgroup) -> float | None:
    """Return the CPU time that the group's processes have used so far, in seconds.

    Args:
        group: The group of the "cpu" controller (version 2) or of "cpuacct" (version 1).

    Returns:
        Seconds, `None` where the group does not count.
    """
    if group.version == 2:
        microseconds = _entry(group.path / "cpu.stat", "usage_usec")
        return None if microseconds is None else microseconds / 1e6
    nanoseconds = _whole(_read(group.path / "cpuacct.usage"))
    return None if nanoseconds is None else nanoseconds / 1e9


def memory_limit(group: Cgroup) -> int | None:
    """Return the memory limit that is set on this very group, in bytes; `None` without one."""
    name = "memory.max" if group.version == 2 else "memory.limit_in_bytes"
    limit = _whole(_read(group.path / name))
    return limit if limit and limit < _V1_UNLIMITED_BYTES else None


def memory_in_use(group: Cgroup) -> int | None:
    """Return the group's memory in bytes, without file cache that the kernel would drop first."""
    if group.version == 2:
        usage, cache = "memory.current", "inactive_file"
    else:
        usage, cache = "memory.usage_in_bytes", "total_inactive_file"
    in_use = _whole(_read(group.path / usage))
    if in_use is None:
        return None
    return max(0, in_use - (_entry(group.path / "memory.stat", cache) or 0))


def _mounts(root: Path) -> Iterator[tuple[int, list[str], Path, PurePosixPath]]:
    """Yield version, controllers, directory, and the group that is shown there, of each mount."""
    for line in _read(root / "proc/self/mountinfo").splitlines():
        where, _, what = line.partition(" - ")
        kind, _, options = what.split(" ", 2)
        if kind not in ("cgroup", "cgroup2"):
            continue
        top_path, mount_point = (_unescape(field) for field in where.split(" ")[3:5])
        top = root / mount_point.lstrip("/")
        names = [""] if kind == "cgroup2" else options.split(",")
        yield 2 if kind == "cgroup2" else 1, names, top, PurePosixPath(top_path)


def _place(version: int, path: PurePosixPath, top: Path, top_path: PurePosixPath) -> Cgroup:
    """Return the group with `path`, or the mount's root where that does not show it."""
    if path.is_relative_to(top_path):
        inner = path.relative_to(top_path)
        # Seen from another namespace, a path climbs: "/../sibling".
        if ".." not in inner.parts and (top / inner).is_dir():
            return Cgroup(version, top, top / inner)
    return Cgroup(version, top, top)


def _unescape(field: str) -> str:
    """Undo mountinfo's octal escapes of spaces and the like."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def _entry(path: Path, name: str) -> int | None:
    """Return the number beside `name` in a file of "name number" lines."""
    found = re.search(rf"^{name} (\d+)$", _read(path), re.MULTILINE)
    return int(found[1]) if found else None


def _whole(text: str) -> int | None:
    """Return a whole number; `None` for "max", for the -1 of "no limit", and for nothing."""
    text = text.strip()
    return int(text) if text.isdecimal() else None


def _read(path: Path) -> str:
    """Return a file's text, empty if it cannot be read: groups come and go while we look."""
    try:
        # Unbuffered, since these files are read whole, often, and on little CPU.
        with open(path, "rb", buffering=0) as file:
            return file.read().decode()
    except OSError:
        return ""
