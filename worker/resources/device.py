"""What a worker computes on, in words, so that workers of the same kind of device know each other's models.

An adapter knows its GPU's name; here is what there is to say of CPUs. It knows no session and no framework.
"""

import platform
from pathlib import Path

from worker.resources.monitors import available_cpus

_MOST = 200  # characters


def cpu_kind(cores: float | None = None, root: Path = Path("/")) -> str:
    """The processor's name, and how many of its cores this process may use.

    Args:
        cores: If it is to use fewer than it may now.
        root: As for `ResourceMonitor`.
    """
    usable = available_cpus(root) if cores is None else cores
    return as_kind(f"{cpu_name(root)}, {usable:g} core{'s' if usable != 1 else ''}")


def cpu_name(root: Path = Path("/")) -> str:
    """The processor's name; where the kernel does not say it, its architecture's."""
    path = root / "proc/cpuinfo"
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def as_kind(name: str) -> str:
    """A name as the manager takes it: short, and without what cannot be printed."""
    return " ".join("".join(c if c.isprintable() else " " for c in name).split())[:_MOST]
