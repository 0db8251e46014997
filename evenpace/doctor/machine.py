"""Checks of this machine's load, swap and CPU frequency, which slow a training down."""

import os
from collections.abc import Iterator
from pathlib import Path

import psutil

from evenpace.doctor.findings import Finding, Subject, judged, ok, size, warning

_WATCHED = 0.5  # seconds over which the load is measured
_SWAPPED = 0.1  # of the swap space
_BUSY = 0.25  # share of the CPUs
_STOLEN = 0.05  # share of the CPU time


def swap(subject: Subject) -> Iterator[Finding]:
    """Check the swap space in use: a training that is swapped out stands still."""
    swapped = psutil.swap_memory()
    if not swapped.total:
        yield ok("swap", "none")
        return
    yield judged(
        "swap",
        f"{size(swapped.used)} of {size(swapped.total)} in use",
        fine=swapped.used <= _SWAPPED * swapped.total,
        advice="see what takes the memory: a worker that is swapped out slows down all others",
    )


def load(subject: Subject) -> Iterator[Finding]:
    """Measure how busy this process's CPUs are, and the share that a hypervisor takes of them."""
    cpus = sorted(os.sched_getaffinity(0))
    times = psutil.cpu_times_percent(interval=_WATCHED, percpu=True)
    ours = [times[cpu] for cpu in cpus if cpu < len(times)]
    if not ours:
        return
    busy = sum(100 - one.idle - one.iowait for one in ours) / 100 / len(ours)
    stolen = sum(getattr(one, "steal", 0.0) for one in ours) / 100 / len(ours)
    if stolen > _STOLEN:
        yield warning(
            "load",
            f"the hypervisor takes {stolen:.0%} of the CPU time",
            "other virtual machines are busy: use dedicated CPUs, or `--predictor auto`, which learns of it",
        )
    yield judged(
        "load",
        f"{busy:.0%} of {len(ours)} CPUs busy",
        fine=busy <= _BUSY,
        advice="workers beside others share their CPUs: the balancer evens that out",
        level="note",
    )


def governor(subject: Subject) -> Iterator[Finding]:
    """Check whether the frequency governor lets CPUs run at full speed."""
    folder = subject.root / "sys/devices/system/cpu"
    files = sorted(folder.glob("cpu[0-9]*/cpufreq/scaling_governor"))
    names = sorted({_read(file) for file in files} - {""})
    if not names:
        yield ok("frequency", "not in this machine's own hands")
    elif "powersave" in names and not _sets_frequencies_itself(folder):
        yield warning(
            "frequency",
            "CPUs run at their lowest frequency (governor powersave)",
            "set the governor performance: `cpupower frequency-set -g performance`",
        )
    else:
        yield ok("frequency", f"governor {', '.join(names)}")


def _sets_frequencies_itself(folder: Path) -> bool:
    """Return whether the governor is only a hint to hardware that chooses frequencies itself."""
    drivers = {_read(file) for file in folder.glob("cpu[0-9]*/cpufreq/scaling_driver")}
    return bool(drivers) and drivers <= {"intel_pstate", "amd-pstate-epp"}


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
