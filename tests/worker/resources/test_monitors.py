"""Usage and capacity as a worker measures them, on made-up /proc and /sys trees and on the real machine."""

import contextlib

import psutil
import pytest

from tests.made_up_machine import MIB, Machine, Memory
from worker.resources import monitors
from worker.resources.monitors import ResourceMonitor, available_cpus


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Replace psutil's machine and the clock by made-up ones."""
    machine = Machine(tmp_path)
    monkeypatch.setattr(monitors, "monotonic", lambda: machine.now)
    monkeypatch.setattr(monitors, "process_time", lambda: machine.own)
    monkeypatch.setattr(psutil, "cpu_times", machine.cpu_times)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: machine.memory)
    monkeypatch.setattr(psutil.Process, "cpu_affinity", lambda self: machine.affinity)
    return machine


def test_cpu_is_the_share_that_others_take_since_the_sample_before(machine):
    """Of the CPUs of the affinity mask, which may change, less this process's own use."""
    monitor = ResourceMonitor(machine.root)
    machine.run(2.0, busy=[0.8, 1.0, 1.0, 1.0], own=1.05)
    first = monitor.sample()
    assert (first.cpu, first.memory) == (pytest.approx(0.375), pytest.approx(0.1))
    assert monitor.sample() == first, "the kernel has not counted since"
    assert available_cpus(machine.root) == 2
    machine.run(0.15, busy=[0.5, 0.5, 1, 1])  # less than a sample looks back
    assert monitor.sample().cpu == pytest.approx(0.5)
    machine.affinity = [2, 3]
    machine.run(1.0, busy=[0, 0, 1, 0.5])
    assert monitor.sample().cpu == pytest.approx(0.75)


MINE = "/sys/fs/cgroup/mine"
TENTH = Memory(total=1000 * MIB, available=900 * MIB)
FULL = Memory(total=1000 * MIB, available=50 * MIB)


@pytest.mark.parametrize(
    ("mount", "counts", "of_machine", "cpus", "memory"),
    [
        pytest.param(
            ("v2", "/mine"),
            {"path": MINE, "limit": 100 * MIB, "used": 90 * MIB, "cache": 40 * MIB},
            *(TENTH, 2, 0.5),
            id="file cache can be reclaimed",
        ),
        pytest.param(
            ("v2", "/mine"),
            {"path": MINE, "limit": 100 * MIB, "used": 10 * MIB},
            *(FULL, 2, 0.95),
            id="the machine is fuller",
        ),
        pytest.param(("v2", "/mine"), {"path": MINE, "used": 900 * MIB}, TENTH, 2, 0.1, id="v2 max"),
        pytest.param(("v1", "/mine"), {"group": "/mine", "used": 900 * MIB}, TENTH, 2, 0.1, id="v1 -1"),
        *(
            pytest.param(
                ("v2", membership),
                {"path": "/sys/fs/cgroup", "cpu_max": "150000 100000", "limit": 100 * MIB, "used": 70 * MIB},
                *(TENTH, 1.5, 0.7),
                id=f"v2 container in {membership}",
            )
            for membership in ("/", "/docker/abc", "/../sibling")
        ),
        *(
            pytest.param(
                ("v1", "/docker/abc", top), {"quota": 20000}, TENTH, 0.2, 0.1, id=f"v1 container below {top}"
            )
            for top in ("/docker/abc", "/elsewhere")
        ),
    ],
)
def test_a_group_is_found_and_its_limits_hold(machine, mount, counts, of_machine, cpus, memory):
    """A container may see the machine's path of its group, or none; it finds it where it is mounted."""
    version, *where = mount
    getattr(machine, f"mount_{version}")(*where)
    getattr(machine, f"{version}_counts")(**counts)
    machine.memory = of_machine
    assert available_cpus(machine.root) == pytest.approx(cpus)
    assert ResourceMonitor(machine.root).sample().memory == pytest.approx(memory)


@pytest.mark.parametrize(
    ("quota", "busy", "own", "used", "share"),
    [
        ("5000 10000", [0.3, 0.3, 0, 0], 0.25, 0.5, 0.5),  # of 0.5 cores, the group's others take 0.25
        ("5000 10000", [0.9, 0.9, 0, 0], 0.0, 0.0, 0.6),  # other tenants leave 0.2 of the two CPUs
        ("5000 10000", [0.75, 0.75, 0, 0], 0.0, 0.0, 0.0),  # or all of the quota
        ("5000 10000", [0.5, 0, 0, 0], 0.5, 0.5, 0.0),  # a worker alone sees nobody
        ("300000 100000", [0.5, 0.5, 0, 0], 0.0, 3.0, 0.5),  # three cores on a mask of two CPUs do not bind
    ],
)
def test_v2_the_smaller_of_quota_and_affinity_is_the_capacity(machine, quota, busy, own, used, share):
    """A sample tells the share of it that others have taken in a second, of the CPUs or of the quota."""
    group = "/sys/fs/cgroup/jobs/mine"
    machine.mount_v2("/jobs/mine")
    machine.v2_counts(group, quota, usage_usec=1_000_000)
    monitor = ResourceMonitor(machine.root)
    machine.run(1.0, busy=busy, own=own)
    machine.v2_counts(group, quota, usage_usec=1_000_000 + int(1e6 * used))
    assert monitor.sample().cpu == pytest.approx(share)
    assert available_cpus(machine.root) == pytest.approx(0.5 if quota.startswith("5000 ") else 2)


@pytest.mark.parametrize(
    ("busy_from", "share"),
    [
        (0.25, 1.0),  # seconds before the sample at which others begin to take all there is
        (0.15, 0.6),
        (0.05, 0.2),
    ],
)
def test_a_sample_looks_back_a_fifth_of_a_second(machine, busy_from, share):
    """A sample covers the time since the last reading that is at least 0.2 s old, here 0.25 s."""
    monitor = ResourceMonitor(machine.root)
    for seconds_before in (2.05, *(0.05 + 0.1 * k for k in reversed(range(20)))):
        monitor.record_counters()
        last = seconds_before <= 0.05
        others = 1.0 if seconds_before < busy_from + 0.01 else 0.0
        machine.run(0.05 if last else 0.1, busy=[others, others, 0, 0])
    assert monitor.sample().cpu == pytest.approx(share)


def test_a_sample_without_a_look_at_the_right_time_goes_further_back(machine):
    """If the thread was delayed, the sample covers the time since the reading before, without a gap."""
    monitor = ResourceMonitor(machine.root)
    machine.run(1.0, busy=[1, 1, 0, 0])
    monitor.record_counters()
    machine.run(10.0, busy=[0.5, 0.5, 0, 0])
    monitor.record_counters()
    machine.run(0.1, busy=[0, 0, 0, 0])
    assert monitor.sample().cpu == pytest.approx(5.0 / 10.1)


def test_short_iterations_share_a_sample(machine):
    """The next one covers all of them."""
    monitor = ResourceMonitor(machine.root)
    machine.run(1.0, busy=[1, 1, 0, 0])
    shared = monitor.sample()
    for others in (0.0, 0.5):
        monitor.resume()
        machine.run(0.04, busy=[others, others, 0, 0])
        assert monitor.sample() is shared
    monitor.resume()
    machine.run(0.04, busy=[1, 1, 0, 0])
    assert monitor.sample().cpu == pytest.approx(0.5)
    monitor.close()


def test_v2_limits_of_ancestors_hold(machine):
    """The smallest limit on the way up to the mount's root is the capacity."""
    machine.mount_v2("/pod/box")
    machine.v2_counts("/sys/fs/cgroup/pod", "20000 100000", limit=100 * MIB, used=80 * MIB)
    machine.v2_counts("/sys/fs/cgroup/pod/box", "50000 100000", limit=400 * MIB, used=80 * MIB)
    monitor = ResourceMonitor(machine.root)
    machine.run(1.0, busy=[0, 0, 0, 0])
    machine.v2_counts("/sys/fs/cgroup/pod", "20000 100000", 100_000, limit=100 * MIB, used=80 * MIB)
    usage = monitor.sample()
    assert available_cpus(machine.root) == pytest.approx(0.2)
    assert usage.cpu == pytest.approx(0.5)
    assert usage.memory == pytest.approx(0.8)


def test_v1_quota_and_memory(machine):
    """Version 1's files give the same figures as version 2's, in their own units."""
    group = "/jobs/mine"
    machine.mount_v1(group)
    machine.v1_counts(group, quota=50000, limit=200 * MIB, used=90 * MIB, cache=50 * MIB)
    monitor = ResourceMonitor(machine.root)
    machine.run(2.0, busy=[0.1, 0.1, 0, 0])
    machine.v1_counts(group, 50000, 400_000_000, limit=200 * MIB, used=90 * MIB, cache=50 * MIB)
    usage = monitor.sample()
    assert usage.cpu == pytest.approx(0.4)
    assert usage.memory == pytest.approx(0.2)
    assert available_cpus(machine.root) == pytest.approx(0.5)


def test_v1_counter_of_another_group_is_not_taken_for_ours(machine):
    """A CPU counter of another group is not compared with this process's quota."""
    machine.mount_v1("/mine", cpuacct="/")
    machine.write("/sys/fs/cgroup/cpu/mine/cpu.cfs_quota_us", 50000)
    machine.write("/sys/fs/cgroup/cpu/mine/cpu.cfs_period_us", 100000)
    machine.write("/sys/fs/cgroup/cpuacct/cpuacct.usage", 0)
    monitor = ResourceMonitor(machine.root)
    machine.run(100.0, busy=[0, 0, 0, 0])
    machine.write("/sys/fs/cgroup/cpuacct/cpuacct.usage", 100_000_000_000)
    assert monitor.sample().cpu < 0.1


def test_a_limit_that_comes_later_is_seen(machine):
    """A process that is moved into a group later measures against that group's quota."""
    machine.mount_v2("/")
    monitor = ResourceMonitor(machine.root)
    group = "/sys/fs/cgroup/mine"
    machine.v2_counts(group, "1000 10000", usage_usec=0)
    machine.write("/proc/self/cgroup", "0::/mine")
    machine.run(1.0, busy=[0, 0, 0, 0])
    assert monitor.sample().cpu == 0.0
    machine.run(1.0, busy=[0, 0, 0, 0])
    machine.v2_counts(group, "1000 10000", usage_usec=100_000)
    assert monitor.sample().cpu == pytest.approx(1.0)


def test_a_group_that_vanishes_does_not_disturb(machine):
    """If files vanish between two samples, the host's figures remain."""
    machine.mount_v2("/mine")
    group = "/sys/fs/cgroup/mine"
    machine.v2_counts(group, "5000 10000", limit=100 * MIB, used=90 * MIB)
    monitor = ResourceMonitor(machine.root)
    for file in (machine.root / group.lstrip("/")).iterdir():
        file.unlink()
    machine.run(1.0, busy=[0.5, 0.5, 0, 0])
    usage = monitor.sample()
    assert (usage.cpu, usage.memory) == (pytest.approx(0.5), pytest.approx(0.1))


def test_the_counters_are_read_while_an_iteration_computes(wait_until):
    """By a thread of the monitor, on the real machine, from `resume` until the sample."""
    with contextlib.closing(ResourceMonitor()) as monitor:
        monitor.resume()
        wait_until(lambda: len(monitor._readings) > 2, "two looks")
        assert 0 <= monitor.sample().cpu <= 1


def test_usage_stays_within_bounds_whatever_the_counters_do(machine):
    """Counters that run ahead of the clock, or backwards, still give shares from 0 to 1."""
    machine.mount_v2("/mine")
    group = "/sys/fs/cgroup/mine"
    machine.v2_counts(group, "1000 10000", usage_usec=5_000_000)
    monitor = ResourceMonitor(machine.root)
    for seconds, usage_usec, used in [(1, 99_000_000, 500), (1, 0, 0), (0, 7, 7), (1e-9, 9e6, 1)]:
        machine.run(seconds, busy=[2, 2, 0, 0] if usage_usec else [-1, -1, 0, 0])
        machine.v2_counts(group, "1000 10000", int(usage_usec), limit=100, used=used)
        usage = monitor.sample()
        assert 0 <= usage.cpu <= 1
        assert 0 <= usage.memory <= 1
