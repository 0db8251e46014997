"""CPU limits for processes that we started: a slow worker on a fast machine, for experiments.

The kernel enforces them where it lets us (cgroup version 2 or 1), else a small process that stops and
continues the limited one. This module must not know what the limited processes do.
"""

import contextlib
import errno
import logging
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Literal, Self
from uuid import uuid4

from rpc.writing import writing
from worker.resources import cgroups, duty_cycle
from worker.resources.cgroups import Cgroup

log = logging.getLogger(__name__)

# The kernel's default of 100 ms makes short iterations pure noise; it grants no less than 1 ms.
_PERIOD_US = 10_000
_SMALLEST_QUOTA_US = 1_000

LimitKind = Literal["auto", "cgroup", "duty-cycle"]

_OWN = "evenpace-"  # begins the names of our groups
_MARK = "user.evenpace.cpu"  # attribute of a group that has got the cpu controller for its children from us
_CLOSE_TIMEOUT = 5.0  # seconds, for processes to leave a group or for the duty cycler to end


class CpuLimit:
    """A limit in force, until it is closed or the `with` block ends."""

    def __init__(self, kind: str, share: float, lift: Callable[[], None]) -> None:
        self.kind = kind  # how it is enforced: "cgroup v2", "cgroup v1" or "stop/continue"
        self.share = share  # cores that the process may use
        self._lift: Callable[[], None] | None = lift

    def close(self) -> None:
        """Lift the limit and leave the process running; a second call does nothing.

        Raises:
            OSError: The control group cannot be removed, since it still holds processes after
                5 seconds.
        """
        lift, self._lift = self._lift, None
        if lift is not None:
            lift()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def limit_cpu(
    pid: int,
    share: float,
    name: str,
    kind: LimitKind = "auto",
) -> CpuLimit:
    """Limit a process to a share of CPU from now on.

    A control group holds all threads of the process and the children that it starts later. Stopping
    and continuing holds its threads only, and is coarser. Import first, then limit: importing torch
    takes seconds of CPU.

    Args:
        pid: The process, one of our own user's.
        share: Cores that it may use, such as 0.25; above 0 and at most the number of CPUs.
        name: Part of the control group's name, such as "worker-3".
        kind: "auto" takes the kernel's limit where it can be set, else stops and continues, which is logged
            with the reason.

    Returns:
        The limit in force; close it to lift it.

    Raises:
        ValueError: `share`, `kind` or `pid` is out of range.
        ProcessLookupError: No such process runs.
        PermissionError: It belongs to another user.
        OSError: `kind` is "cgroup", and no control group can be made here.
    """
    check_share(share)
    if kind not in ("auto", "cgroup", "duty-cycle"):
        raise ValueError(f'kind is {kind!r}; it must be "auto", "cgroup" or "duty-cycle"')
    duty_cycle.require_own(pid)
    if kind != "duty-cycle":
        try:
            return _limit_by_cgroup(pid, share, name)
        except OSError as error:
            if kind == "cgroup":
                raise OSError(
                    error.errno,
                    f"cannot limit process {pid} to {share} cores by a control group ({error}); "
                    f'{_remedy()}, or ask for kind "duty-cycle"',
                ) from error
            log.warning(
                "a CPU limit stops and continues its process, which is coarser than a control group (%s): %s",
                error,
                _remedy(),
            )
    return _limit_by_duty_cycle(pid, share)


def check_share(share: float) -> None:
    """Check that a process can be limited to a share.

    Raises:
        ValueError: It is not above 0, or more than the CPUs here.
    """
    cpus = os.cpu_count() or 1
    if not (math.isfinite(share) and 0 < share <= cpus):
        raise ValueError(f"share is {share}; it must be above 0 and at most {cpus}, the CPUs here")


def kind_here(wanted: LimitKind = "auto") -> str:
    """Limit a process of our own for a moment; return how that was enforced, as `CpuLimit.kind`.

    Raises:
        OSError: `wanted` is "cgroup", and no control group can be made here.
    """
    with subprocess.Popen(["sleep", "60"], stdin=subprocess.DEVNULL) as child:
        try:
            with limit_cpu(child.pid, 0.5, "probe", wanted) as limit:
                return limit.kind
        finally:
            child.kill()


def _remedy() -> str:
    """Return what gets a process a control group."""
    if os.geteuid() == 0:
        return "run where the cpu controller can be written"
    return "start it by `systemd-run --user --scope`, which gives ordinary users a group, or run as root"


def remove_leftovers(name_prefix: str) -> None:
    """Remove the empty control groups of earlier limits whose processes were killed.

    Args:
        name_prefix: Beginning of the `name` given to `limit_cpu`.
    """
    own = cgroups.membership()
    for controller in ("cpu", "cpuacct"):
        home = cgroups.find_group(controller, own)
        for parent in home.lineage() if home else ():
            for group in parent.path.glob(f"{_label(name_prefix)}*"):
                with contextlib.suppress(OSError):  # it is in use, or gone already
                    group.rmdir()
            _take_cpu_back(parent)


def _label(name: str) -> str:
    return f"{_OWN}{re.sub(r'[^A-Za-z0-9_.-]', '_', name)}"


def _limit_by_cgroup(pid: int, share: float, name: str) -> CpuLimit:
    membership = cgroups.membership(pid)
    home = cgroups.find_group("cpu", membership)
    if home is None:
        raise FileNotFoundError(errno.ENOENT, "no control groups are mounted")
    # A unique name: a group of another run, dead or alive, must not be taken for ours.
    label = f"{_label(name)}-{uuid4().hex[:8]}"
    with contextlib.ExitStack() as undo:
        if home.version == 2:
            _confine(_make_v2(home, label, undo), home, pid, share, undo)
        else:
            group = Cgroup(1, home.top, home.path / label)
            group.path.mkdir()
            _confine(group, home, pid, share, undo)
            _count_apart(home, membership, label, pid, undo)
        return CpuLimit(f"cgroup v{home.version}", share, undo.pop_all().close)


def _make_v2(home: Cgroup, label: str, undo: contextlib.ExitStack) -> Cgroup:
    """Make a group with the cpu controller as near to `home` as the kernel allows.

    A group of version 2 that holds processes is no parent, so that the new one mostly stands beside `home` or
    further up. To give such a group's children a controller seems to work, but makes them groups of threads,
    to which no process can be moved.
    """
    refusal: OSError | None = None
    for parent in home.lineage():
        group = Cgroup(2, home.top, parent.path / label)
        try:
            if cgroups.holds_processes(parent):
                raise OSError(errno.EBUSY, "processes are in this control group", str(parent.path))
            with contextlib.ExitStack() as given:
                given.callback(_take_cpu_back, parent)
                control = parent.path / "cgroup.subtree_control"
                if "cpu" not in control.read_text().split():
                    _write(control, "+cpu")
                    with contextlib.suppress(OSError):  # before Linux 5.7
                        os.setxattr(parent.path, _MARK, b"")
                group.path.mkdir()
                undo.push(given.pop_all())
        except OSError as error:
            refusal = error
        else:
            return group
        # Beside a group with a limit of its own, the process would escape from that.
        if cgroups.cpu_quota(parent) or cgroups.memory_limit(parent):
            break
    raise refusal or FileNotFoundError(errno.ENOENT, "no control group to stand in")


def _take_cpu_back(parent: Cgroup) -> None:
    """Take the controller back that a group has from us for its children, unless a limit still needs it."""
    if not any(parent.path.glob(f"{_OWN}*")):
        with contextlib.suppress(OSError):
            os.removexattr(parent.path, _MARK)  # fails where it was not from us
            _write(parent.path / "cgroup.subtree_control", "-cpu")


def _confine(group: Cgroup, home: Cgroup, pid: int, share: float, undo: contextlib.ExitStack) -> None:
    """Set the quota of a new group and move the process in; `undo` gets the steps that undo it."""
    undo.callback(_remove, group.path, home.path)
    # The wanted period, or longer where the quota would fall below what the kernel grants.
    period = max(_PERIOD_US, math.ceil(_SMALLEST_QUOTA_US / share))
    quota = max(_SMALLEST_QUOTA_US, round(share * period))
    if group.version == 2:
        _write(group.path / "cpu.max", f"{quota} {period}")
    else:
        _write(group.path / "cpu.cfs_period_us", str(period))
        _write(group.path / "cpu.cfs_quota_us", str(quota))
    _write(group.path / "cgroup.procs", str(pid))


def _count_apart(home: Cgroup, membership: str, label: str, pid: int, undo: contextlib.ExitStack) -> None:
    """Count the group's CPU time where version 1 counts in a hierarchy of its own.

    The limit holds without it; but a monitor in the process reads its usage there.
    """
    counting = cgroups.find_group("cpuacct", membership)
    if counting is None or counting.version != 1 or (counting.path / label).exists():
        return
    if counting.inner_path != home.inner_path:
        return
    with contextlib.suppress(OSError):
        (counting.path / label).mkdir()
        undo.callback(_remove, counting.path / label, counting.path)
        _write(counting.path / label / "cgroup.procs", str(pid))


def _write(control: Path, value: str) -> None:
    with writing(control):
        control.write_text(value)


def _remove(group: Path, home: Path) -> None:
    """Move a group's processes to where the first one came from, and remove the group."""
    deadline = time.monotonic() + _CLOSE_TIMEOUT
    while True:
        for pid in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                _write(home / "cgroup.procs", pid)
        try:
            group.rmdir()
        except OSError as error:
            # Processes that fork or end meanwhile are seen at the next turn.
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.005)
        else:
            return


def _limit_by_duty_cycle(pid: int, share: float) -> CpuLimit:
    started = duty_cycle.require_own(pid)
    # By its file and without site packages: it needs the standard library alone, and starts in a
    # tenth of the time wherever the current directory is.
    command = [sys.executable, "-I", "-S", str(duty_cycle.__file__), str(pid), repr(share)]
    cycler = subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def lift() -> None:
        cycler.terminate()
        try:
            cycler.wait(_CLOSE_TIMEOUT)
        except subprocess.TimeoutExpired:
            cycler.kill()
            cycler.wait()
        # Had it died before us, it may have left the process stopped.
        duty_cycle.resume(pid, started)

    return CpuLimit("stop/continue", share, lift)
