"""Cases of CPU limits on a kernel that has control groups of version 2 alone; run there, as root.

Each process is where systemd puts it: in a group with other processes, below others that have none.
"""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.worker.resources.test_cpu_limits import SPIN, holds
from worker.resources import cgroups
from worker.resources.cpu_limits import limit_cpu

TOP = Path("/sys/fs/cgroup")
NOBODY = 65534
PROBE = "from worker.resources.cpu_limits import kind_here; print(kind_here())"


def own_group():
    """The group of this process."""
    return cgroups.find_group("cpu", cgroups.membership()).path


def controllers(group):
    """The controllers that a group gives its children."""
    return (group / "cgroup.subtree_control").read_text().split()


def move(group, pid="0"):
    """Move a process to a group; "0" is this one."""
    (group / "cgroup.procs").write_text(str(pid))


@pytest.fixture
def group():
    """Make groups by their paths from the top; afterwards this process is back, and they are gone."""
    home, made = own_group(), []

    def make(path, owner=0):
        made.append(TOP / path)
        made[-1].mkdir()
        if owner:
            for file in ("", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads"):
                os.chown(made[-1] / file, owner, owner)
        return made[-1]

    yield make
    move(home)
    for path in reversed(made):
        path.rmdir()


@pytest.fixture
def spinning():
    """Start a process that is busy, in the group that this one is in; its id."""
    with contextlib.ExitStack() as ended:

        def start():
            child = ended.enter_context(
                subprocess.Popen([sys.executable, "-c", SPIN], stdout=subprocess.PIPE)
            )
            ended.callback(child.kill)
            child.stdout.readline()
            return child.pid

        yield start


@pytest.mark.parametrize("share", [0.5, 0.2])
def test_the_kernel_limits_a_process_beside_others(group, spinning, share):
    """A session's group holds processes: it stays as it is, and a group beside it has the limit."""
    session = group("session")
    move(session)
    limited = spinning()
    with limit_cpu(limited, share, "case", "cgroup") as limit:
        assert limit.kind == "cgroup v2"
        assert not controllers(session)
        holds(limit, limited, spinning())
    assert cgroups.membership(limited).strip() == "0::/session"
    assert not list(TOP.glob("evenpace-*"))


def test_what_was_changed_is_taken_back_with_the_last_limit(group, spinning):
    """A slice without the controller has it while there are limits, one of its own accord for good."""
    for given in (False, True):
        slice_ = group(f"{given}.slice")
        if given:
            (slice_ / "cgroup.subtree_control").write_text("+cpu")
        move(group(f"{given}.slice/service"))
        first, second = (limit_cpu(spinning(), 0.5, "case", "cgroup") for _ in range(2))
        assert len(list(slice_.glob("evenpace-*"))) == 2
        first.close()
        assert controllers(slice_) == ["cpu"]
        second.close()
        assert controllers(slice_) == (["cpu"] if given else [])


@pytest.mark.parametrize(("owner", "kind"), [(NOBODY, "cgroup v2"), (0, "stop/continue")])
def test_an_ordinary_user_has_a_group_where_it_is_delegated(group, owner, kind):
    """As `systemd-run --user --scope` gives them one; else a line says why not, and names that command."""
    group("user.slice")
    (TOP / "user.slice" / "cgroup.subtree_control").write_text("+cpu")
    group("user.slice/app.slice", owner)
    move(group("user.slice/app.slice/run.scope", owner))
    command = ["/usr/bin/python3", "-c", PROBE]  # the environment's may be for root alone
    probe = subprocess.run(command, user=NOBODY, cwd=ROOT, check=True, capture_output=True, text=True)
    assert probe.stdout.strip() == kind
    assert ("start it by `systemd-run --user --scope`" in probe.stderr) == (owner == 0)
    assert not controllers(TOP / "user.slice" / "app.slice")
