"""A made-up machine: the counters of its CPUs and memory, and the files in which a kernel shows groups."""

from collections import namedtuple
from pathlib import Path

CpuTimes = namedtuple("CpuTimes", "user nice system idle iowait irq softirq steal guest guest_nice")
Memory = namedtuple("Memory", "total available")

MIB = 2**20
V1_NO_LIMIT = 9223372036854771712


class Machine:
    """A machine of four CPUs whose counters a test turns on; its process may use CPUs 0 and 1."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.now = 100.0
        self.own = 50.0
        self.affinity = [0, 1]
        self.busy = [0.0] * 4
        self.idle = [0.0] * 4
        self.memory = Memory(total=1000 * MIB, available=900 * MIB)

    def cpu_times(self, percpu):
        """Stand in for psutil's function of that name."""
        assert percpu
        return [
            CpuTimes(busy, 0, 0, idle, 0, 0, 0, 0, 0, 0)
            for busy, idle in zip(self.busy, self.idle, strict=True)
        ]

    def run(self, seconds, busy, own=0.0):
        """Let time pass while each CPU is busy for its share of it, in part by `own` cores of our process."""
        self.now += seconds
        self.own += own * seconds
        for cpu, share in enumerate(busy):
            self.busy[cpu] += share * seconds
            self.idle[cpu] += (1 - share) * seconds

    def write(self, path, text):
        """Write a file as the kernel would show it."""
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")

    def mount_v2(self, membership="/", top="/"):
        """Mount version 2 with the group `top` at its root; the process is in `membership`."""
        self.write("/proc/self/cgroup", f"0::{membership}")
        self.write(
            "/proc/self/mountinfo",
            "22 1 0:20 / / rw - ext4 /dev/root rw\n"
            f"30 23 0:26 {top} /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate",
        )
        (self.root / "sys/fs/cgroup").mkdir(parents=True, exist_ok=True)

    def mount_v1(self, membership="/", top="/", cpuacct=None):
        """Mount cpu and cpuacct together as many systems do, or apart if `cpuacct` is a path."""
        together = cpuacct is None
        cpu = "cpu,cpuacct" if together else "cpu"
        groups = [f"4:memory:{membership}", f"3:{cpu}:{membership}", "1:name=systemd:/"]
        mounts = [("memory", "memory"), (cpu, cpu)]
        if not together:
            groups.append(f"2:cpuacct:{cpuacct}")
            mounts.append(("cpuacct", "cpuacct"))
        self.write("/proc/self/cgroup", "\n".join(groups))
        self.write(
            "/proc/self/mountinfo",
            "\n".join(
                f"3{number} 30 0:3{number} {top} /sys/fs/cgroup/{folder} rw - cgroup cgroup rw,{of}"
                for number, (folder, of) in enumerate(mounts)
            ),
        )
        for folder, _ in mounts:
            (self.root / "sys/fs/cgroup" / folder).mkdir(parents=True, exist_ok=True)

    def v2_counts(self, path, cpu_max="max 100000", usage_usec=0, limit="max", used=0, cache=0):
        """Write what a group of version 2 allows and has counted."""
        self.write(f"{path}/cpu.max", cpu_max)
        self.write(f"{path}/cpu.stat", f"usage_usec {usage_usec}\nuser_usec 1\nsystem_usec 1")
        self.write(f"{path}/memory.max", limit)
        self.write(f"{path}/memory.current", used)
        self.write(f"{path}/memory.stat", f"anon 1\ninactive_file {cache}\nactive_file 7")

    def v1_counts(self, group="", quota=-1, usage_ns=0, limit=V1_NO_LIMIT, used=0, cache=0):
        """Write what a group of version 1 allows and has counted."""
        cpu, memory = f"/sys/fs/cgroup/cpu,cpuacct{group}", f"/sys/fs/cgroup/memory{group}"
        self.write(f"{cpu}/cpu.cfs_quota_us", quota)
        self.write(f"{cpu}/cpu.cfs_period_us", 100000)
        self.write(f"{cpu}/cpuacct.usage", usage_ns)
        self.write(f"{memory}/memory.limit_in_bytes", limit)
        self.write(f"{memory}/memory.usage_in_bytes", used)
        self.write(f"{memory}/memory.stat", f"inactive_file 5\ntotal_inactive_file {cache}")
