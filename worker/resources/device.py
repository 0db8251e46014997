"""Names of the devices that workers compute on, by which workers of one kind share what was learned of it.

An adapter knows its GPU's name; this module names CPUs. It knows no session and no framework.
"""

import platform
from pathlib import Path

from worker.resources.monitors import available_cpus

_MAX_CHARACTERS = 200


def cpu_kind(cores: float | None = None, root: Path = Path("/")) -> str:
    """Return the processor's name, with the number of its cores that this process may use.

    Args:
        cores: Number of cores, if other than those that it may use now.
        root: As for `ResourceMonitor`.
    """
    usable = available_cpus(root) if cores is None else cores
    return as_kind(f"{cpu_name(root)}, {usable:g} core{'s' if usable != 1 else ''}")


def cpu_name(root: Path = Path("/")) -> str:
    """Return the processor's name, or its architecture's where the kernel does not give it."""
    path = root / "proc/cpuinfo"
    lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def as_kind(name: str) -> str:
    """Make a name acceptable to the manager: at most 200 characters, all of them printable."""
    return " ".join("".join(c if c.isprintable() else " " for c in name).split())[:_MAX_CHARACTERS]
