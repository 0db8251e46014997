"""CPU limits on real processes: the share that they get, and that nothing stays behind."""

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from tests import ROOT
from tests.services import cpu_seconds, has_ended
from worker.resources import cgroups, duty_cycle
from worker.resources.cgroups import Cgroup
from worker.resources.cpu_limits import limit_cpu
from worker.resources.duty_cycle import PERIOD, Budget

SPIN = "print(flush=True)\nwhile True: pass"
SPIN_TWICE = f"import threading\nthreading.Thread(target=exec, args=('while True: pass',)).start()\n{SPIN}"
SLEEP = "import time\nprint(flush=True)\ntime.sleep(600)"


@pytest.fixture
def start():
    """Start Python code in a child that prints a line when it is ready; end it afterwards."""
    with contextlib.ExitStack() as ended:

        def start(code, *arguments, **options):
            child = subprocess.Popen(
                [sys.executable, "-c", code, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
                **options,
            )
            ended.enter_context(child)
            ended.callback(child.kill)
            child.stdout.readline()
            return child

        yield start


@pytest.fixture
def needs_cgroup(start):
    """Skip where no control group with a CPU limit can be made."""
    try:
        limit_cpu(start(SLEEP).pid, 0.5, "probe", "cgroup").close()
    except OSError as error:
        pytest.skip(f"no writable control group: {error}")


def wait_until(condition, timeout=240.0):
    """Wait until the condition holds, and fail if it does not in time."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.002)


class Reading(NamedTuple):
    """A process's CPU time, and the moments that it was read between; all in seconds."""

    earliest: float
    latest: float
    used: float


def read(pid, kind):
    """Read the CPU time that counts against a limit.

    A duty cycler that is held up lets its process run on, but makes up for that before it continues the
    process again. So what it has given is read when it does that; until then, the CPU time stands still.
    """
    if kind != "stop/continue":
        earliest = time.monotonic()
        used = cpu_seconds(pid)
        return Reading(earliest, time.monotonic(), used)
    stopped = None
    while True:
        at, used = time.monotonic(), cpu_seconds(pid)
        if is_stopped(pid) and cpu_seconds(pid) == used and stopped in (None, used):
            earliest, stopped = at, used
        elif stopped is not None:
            return Reading(earliest, time.monotonic(), stopped)
        time.sleep(0.001)


def holds(limit, pid, twin, seconds=1.5):
    """Check that a limited, busy process gets its share.

    It must not have got more at any time, however busy the machine is. In some stretch it must have got as
    much, but for a fifth, or as much as an unlimited twin where the machine is too busy. Of a quota, it gets
    less than both while its turn comes too late for a period.
    """
    began, twin_began = read(pid, limit.kind), cpu_seconds(twin)

    def got_its_share():
        nonlocal began, twin_began
        twin_now = cpu_seconds(twin)
        now = read(pid, limit.kind)
        used, longest = now.used - began.used, now.latest - began.earliest
        # What a period has left is kept for the next one, and the kernel looks at its ticks only, which come
        # late on a busy virtual machine.
        assert used <= 1.05 * limit.share * (longest + PERIOD) + 0.1
        if longest <= seconds:
            return False
        due = limit.share * (now.earliest - began.latest)
        enough = used > 0.8 * min(due, twin_now - twin_began)
        began, twin_began = now, twin_now
        return enough

    wait_until(got_its_share)


def runs_on(pid):
    """Check that a process without a limit is not stopped, and goes on to use the CPU."""
    assert not is_stopped(pid)
    used = cpu_seconds(pid)
    wait_until(lambda: cpu_seconds(pid) > used + 0.01)


def duty_cycler():
    """Return the one duty cycler that this process has started.

    The kernel shows no command of a process for a moment after `Popen` has returned.
    """

    def is_cycler(child):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended
            return duty_cycle.__file__ in child.cmdline()
        return False

    def cyclers():
        return list(filter(is_cycler, psutil.Process().children()))

    wait_until(cyclers)
    (cycler,) = cyclers()
    return cycler


def say(child, line):
    """Write a line to a child."""
    child.stdin.write(f"{line}\n")
    child.stdin.flush()


def is_stopped(pid):
    """Tell whether a process stands stopped by a signal."""
    return psutil.Process(pid).status() == psutil.STATUS_STOPPED


def left_groups(name):
    """Return the directories of control groups that carry a limit's name."""
    membership = cgroups.membership()
    found = [cgroups.find_group(controller, membership) for controller in ("cpu", "cpuacct")]
    # Not by `rglob`, which fails where another test's group goes while it looks.
    folders = [Path(folder) for group in found if group for folder, _, _ in os.walk(group.top)]
    return [folder for folder in folders if folder.name.startswith(f"evenpace-{name}-")]


@pytest.fixture
def cycle(start):
    """Start a duty cycler from the command line; end it before the process that it holds."""
    with contextlib.ExitStack() as ended:

        def cycle(pid, share):
            command = [sys.executable, "-m", "worker.resources.duty_cycle", str(pid), str(share)]
            cycler = ended.enter_context(subprocess.Popen(command, cwd=ROOT))
            ended.callback(cycler.kill)
            return cycler

        yield cycle


@pytest.mark.slow
@pytest.mark.usefixtures("needs_cgroup")
def test_control_group_limits_the_share(start):
    """All threads of a busy process together get its share from the kernel, and no more; no group stays.

    Closing removes the group, whether its process still runs or has ended.
    """
    running, ended = start(SPIN_TWICE), start(SLEEP)
    name = f"share-{uuid.uuid4().hex[:8]}"  # what a killed run of the test has left is not ours
    limits = [limit_cpu(child.pid, 0.2, name, "cgroup") for child in (running, ended)]
    assert limits[0].kind in ("cgroup v1", "cgroup v2")
    assert limits[0].share == 0.2
    assert left_groups(name)
    holds(limits[0], running.pid, start(SPIN).pid)
    ended.kill()
    ended.wait()
    for limit in limits:
        limit.close()
        limit.close()
    assert not left_groups(name)
    runs_on(running.pid)


@pytest.mark.slow
def test_duty_cycle_limits_the_share(start):
    """All threads of a busy process together get its share by stopping and continuing."""
    child = start(SPIN_TWICE)
    with limit_cpu(child.pid, 0.1, "share", "duty-cycle") as limit:
        assert limit.kind == "stop/continue"
        assert limit.share == 0.1
        holds(limit, child.pid, start(SPIN).pid)


@pytest.mark.ci
@pytest.mark.usefixtures("needs_cgroup")
def test_limits_nest(start):
    """A second limit on a process holds beside the first one, and goes without it.

    With version 2 the first one's group holds the process, and is no parent: the second stops and continues.
    """
    child, twin = start(SPIN), start(SPIN)
    name = f"nest-{uuid.uuid4().hex[:8]}"
    with limit_cpu(child.pid, 0.5, name, "cgroup") as outer:
        with limit_cpu(child.pid, 0.1, name) as inner:
            holds(inner, child.pid, twin.pid)
        holds(outer, child.pid, twin.pid)
    assert not left_groups(name)


@pytest.mark.usefixtures("needs_cgroup")
def test_a_monitor_sees_the_limit_as_its_capacity(start):
    """One of two processes that share 0.3 cores measures the other's share of them.

    The measured share lies between the kernel's count of the other, and all that is not its own.
    """
    code = (
        "import subprocess, sys, time\n"
        "from worker.resources.monitors import ResourceMonitor, available_cpus\n"
        "print(flush=True)\nsys.stdin.readline()\n"
        "other = subprocess.Popen([sys.executable, '-c', 'while True: pass'])\n"
        "began, monitor = time.monotonic(), ResourceMonitor()\n"
        "used = lambda: (time.clock_gettime(~other.pid << 3 | 2), time.process_time())\n"
        "before = after = used()\n"
        "while min(now - then for now, then in zip(after, before)) < 0.1: after = used()\n"
        "taken, seconds = monitor.sample().cpu, time.monotonic() - began\n"
        "others, own = ((now - then) / seconds for now, then in zip(after, before))\n"
        "print(available_cpus(), taken, others, own, flush=True)\n"
        "other.kill()"
    )
    child = start(code)
    with limit_cpu(child.pid, 0.3, "seen", "cgroup"):
        say(child, "go")
        cpus, taken, others, own = map(float, child.stdout.readline().split())
        assert cpus == pytest.approx(0.3)
        assert others / 0.3 - 0.1 < taken < 1 - own / 0.3 + 0.1
        child.wait(120)


def test_a_stopped_process_runs_on_after_close(start):
    """Closing continues the process, even if it stands stopped at that moment."""
    child = start(SPIN)
    limit = limit_cpu(child.pid, 0.02, "stopped", "duty-cycle")
    cycler = duty_cycler()
    wait_until(lambda: is_stopped(child.pid))
    limit.close()
    assert has_ended(cycler)
    limit.close()
    runs_on(child.pid)


def test_close_continues_what_a_killed_duty_cycler_left_stopped(start):
    """A process left stopped by a killed duty cycler is continued by close."""
    child = start(SPIN)
    limit = limit_cpu(child.pid, 0.01, "killed", "duty-cycle")
    cycler = duty_cycler()

    def caught():
        """Suspend the duty cycler; return whether its process stays stopped, or let it go on."""
        cycler.suspend()
        wait_until(lambda: cycler.status() == psutil.STATUS_STOPPED)
        if is_stopped(child.pid):
            return True
        cycler.resume()
        return False

    wait_until(caught)
    cycler.kill()
    assert is_stopped(child.pid)
    limit.close()
    runs_on(child.pid)


def test_a_duty_cycler_that_was_stopped_itself_goes_on(start, cycle):
    """The limit stays in force however often the duty cycler is stopped and continued."""
    child = start(SPIN)
    cycler = cycle(child.pid, 0.05)
    for _ in range(20):
        wait_until(lambda: is_stopped(child.pid) or cycler.poll() is not None)
        assert cycler.poll() is None
        cycler.send_signal(signal.SIGSTOP)
        wait_until(lambda: is_stopped(cycler.pid))
        time.sleep(2 * PERIOD)  # longer than it ever waits
        cycler.send_signal(signal.SIGCONT)
        wait_until(lambda: not is_stopped(child.pid))
    assert cycler.poll() is None


@pytest.mark.parametrize("ended", ["duty cycler", "process"])
def test_a_duty_cycler_ends_well(start, cycle, ended):
    """By a signal, before which it continues its process; and with that, waited for or not."""
    child = start(SPIN)
    cycler = cycle(child.pid, 0.02)
    wait_until(lambda: is_stopped(child.pid))
    if ended == "process":
        child.kill()
    else:
        cycler.send_signal(signal.SIGTERM)
    assert cycler.wait(120) == 0
    if ended == "duty cycler":
        runs_on(child.pid)


def test_a_duty_cycler_ends_with_its_parent(start):
    """A duty cycler whose launcher is killed continues the process and ends."""
    child = start(SPIN)
    launcher = start(
        "import sys, time\nfrom worker.resources.cpu_limits import limit_cpu\n"
        "limit = limit_cpu(int(sys.argv[1]), 0.02, 'orphan', 'duty-cycle')\n"
        "print(flush=True)\ntime.sleep(600)",
        str(child.pid),
    )
    (cycler,) = psutil.Process(launcher.pid).children()
    wait_until(lambda: is_stopped(child.pid))
    launcher.kill()
    wait_until(lambda: has_ended(cycler))
    runs_on(child.pid)


@pytest.mark.parametrize(
    ("pid", "share", "kind", "said"),
    [
        (None, 0, "auto", r"share is 0; .* above 0 and at most \d+"),
        (None, -0.5, "auto", r"share is -0\.5; .* above 0 and at most \d+"),
        (None, float("nan"), "auto", r"share is nan; .* above 0 and at most \d+"),
        (None, float("inf"), "auto", r"share is inf; .* above 0 and at most \d+"),
        (None, 1e6, "auto", r"share is 1000000\.0; .* above 0 and at most \d+"),
        (0, 0.5, "auto", "pid is 0"),  # kill() takes these for groups of processes
        (-1, 0.5, "auto", "pid is -1"),
        (None, 0.5, "quota", r'kind is "?.quota.*"duty-cycle"'),
    ],
)
def test_an_impossible_limit_is_refused(pid, share, kind, said):
    """The error names the value and what is allowed."""
    with pytest.raises(ValueError, match=said):
        limit_cpu(os.getpid() if pid is None else pid, share, "refused", kind)


def test_an_ended_process_is_refused(start):
    """A process that has ended cannot be limited, whether it was waited for or not."""
    child = start(SLEEP)
    child.kill()
    wait_until(lambda: psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE)
    with pytest.raises(ProcessLookupError, match=str(child.pid)):
        limit_cpu(child.pid, 0.5, "refused")
    child.wait()
    with pytest.raises(ProcessLookupError, match=str(child.pid)):
        limit_cpu(child.pid, 0.5, "refused")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process as another user")
def test_another_users_process_is_refused(start):
    """Even root limits only its own processes."""
    child = subprocess.Popen(["sleep", "600"], user=65534)
    try:
        with pytest.raises(PermissionError, match="belongs to user 65534"):
            limit_cpu(child.pid, 0.5, "refused")
    finally:
        child.kill()
        child.wait()


def test_without_control_groups_auto_stops_and_continues(start, monkeypatch):
    """The kind "auto" falls back to stopping where no group can be made, and "cgroup" says why not."""
    monkeypatch.setattr(cgroups, "find_group", lambda *_: None)
    child = start(SLEEP)
    with limit_cpu(child.pid, 0.5, "none") as limit:
        assert limit.kind == "stop/continue"
    with pytest.raises(OSError, match=r"no control groups are mounted.*duty-cycle"):
        limit_cpu(child.pid, 0.5, "none", "cgroup")


@pytest.mark.parametrize(
    ("share", "cpu_max"), [(0.2, "2000 10000"), (0.1, "1000 10000"), (0.05, "1000 20000")]
)
def test_version_2_sets_cpu_max_in_a_group_of_its_own(tmp_path, monkeypatch, share, cpu_max):
    """A child group of version 2 gets quota and period, and the process is moved back at the end."""
    (tmp_path / "cgroup.subtree_control").write_text("memory")
    home = Cgroup(2, tmp_path, tmp_path)
    monkeypatch.setattr(cgroups, "find_group", lambda *_: home)
    monkeypatch.setattr(Path, "rmdir", shutil.rmtree)
    with limit_cpu(os.getpid(), share, "a/b", "cgroup") as limit:
        assert limit.kind == "cgroup v2"
        (group,) = tmp_path.glob("evenpace-a_b-*")
        assert (group / "cpu.max").read_text() == cpu_max
        assert (group / "cgroup.procs").read_text() == str(os.getpid())
        assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpu"
    assert not group.exists()
    assert (tmp_path / "cgroup.procs").read_text() == str(os.getpid())


def test_version_2_has_no_parents_that_hold_processes(tmp_path, monkeypatch):
    """Such a group stays as it is; the limit is in one beside it, whose parent has the controller from us."""
    home = tmp_path / "session"
    home.mkdir()
    for group, processes in ((tmp_path, ""), (home, f"{os.getpid()}\n")):
        (group / "cgroup.type").write_text("domain\n")
        (group / "cgroup.procs").write_text(processes)
        (group / "cgroup.subtree_control").write_text("")
    monkeypatch.setattr(cgroups, "find_group", lambda *_: Cgroup(2, tmp_path, home))
    monkeypatch.setattr(Path, "rmdir", shutil.rmtree)
    with limit_cpu(os.getpid(), 0.5, "beside", "cgroup"):
        assert len(list(tmp_path.glob("evenpace-beside-*"))) == 1
        assert (tmp_path / "cgroup.subtree_control").read_text() == "+cpu"
    assert [path.name for path in home.iterdir() if path.is_dir()] == []
    assert (home / "cgroup.subtree_control").read_text() == ""


def test_version_2_does_not_let_a_process_escape_from_a_limit(tmp_path, monkeypatch):
    """A group that is limited itself is never left for a place beside it."""
    inner = tmp_path / "inner"
    inner.mkdir()
    (tmp_path / "cgroup.subtree_control").write_text("cpu")
    (inner / "cpu.max").write_text("5000 10000")  # and no control over what is below
    monkeypatch.setattr(cgroups, "find_group", lambda *_: Cgroup(2, tmp_path, inner))
    with pytest.raises(OSError, match=r"cgroup\.subtree_control"):
        limit_cpu(os.getpid(), 0.9, "escape", "cgroup")
    assert list(tmp_path.glob("evenpace-*")) == []


@pytest.mark.parametrize("share", [0.03, 0.2, 0.5, 1.5])
@pytest.mark.parametrize("pace", [1.0, 2.0, 8.0])
def test_the_budgets_mean_is_exact_for_a_busy_process(share, pace):
    """A busy process is off its share by one check's overdraft at most, however late the checks are."""
    late = random.Random(0)
    budget, elapsed, used = Budget(share, period=0.02), 0.0, 0.0
    while elapsed < 50:
        running = budget.balance >= 0
        # Late by up to half a period: less than what the budget can hold.
        wait = budget.next_look(pace) + late.uniform(0, 0.01)
        spent = pace * wait if running else 0.0
        budget.settle(wait, spent)
        elapsed, used = elapsed + wait, used + spent
    assert used == pytest.approx(min(share, pace) * elapsed, abs=pace * 0.03)


@pytest.mark.parametrize("share", [0.03, 0.5, 2.0])
def test_a_budget_saves_one_period_at_most(share):
    """A long rest buys no long burst."""
    budget = Budget(share, period=0.02)
    for _ in range(1000):
        budget.settle(elapsed=0.02, used=0.0)
        assert 0 <= budget.balance <= share * 0.02
        assert 0 < budget.next_look(pace=1.0) <= 0.02
