"""Devices that workers compute on, and names of their kinds, whose workers share what was learned of it.

An adapter knows its GPU's name; this module names CPUs. It knows no session and no framework.
"""

import platform
from pathlib import Path

from worker.resources.monitors import available_cpus

_MAX_CHARACTERS = 200


class Device:
    """The device that a worker computes on, as it tells the manager.

    Args:
        named: Its kind as the user names it; None to go by what is found.
    """

    def __init__(self, named: str | None = None) -> None:
        # The threads that the worker computes with on its CPU; None where that is not known.
        self.threads: int | None = None
        self._named = named
        self._found = ""

    @property
    def kind(self) -> str:
        """Its kind, in words: as the user names it, or the GPU that was found, or else the CPU's."""
        return self._named or as_kind(self._found) or cpu_kind()

    def describe(self, gpu: str | None = None, threads: int | None = None) -> None:
        """Note what was found; what is left out stays.

        Args:
            threads: The threads that the worker computes with on its CPU.
        """
        self._found = gpu or self._found
        self.threads = threads or self.threads


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
