"""A GPU's memory as NVML, the library behind nvidia-smi, measures it: for frameworks without such figures.

This module needs the package nvidia-ml-py (the extra `nvml`), and knows no framework and no session.
"""

import contextlib
import os
from typing import Any

from worker.resources.device_memory import DeviceMemory

try:
    import pynvml
except ImportError:
    pynvml = None


class Device:
    """One GPU as NVML sees it.

    Args:
        index: The GPU's number as the framework counts, among those in `CUDA_VISIBLE_DEVICES`.
        nvml: NVML's Python module; by default the installed one.

    Raises:
        LookupError: NVML is not installed, or has no such GPU.
    """

    def __init__(self, index: int = 0, nvml: Any = None) -> None:
        self._nvml = nvml or pynvml
        if self._nvml is None:
            raise LookupError("NVML needs the package nvidia-ml-py: pip install evenpace[nvml]")
        try:
            self._nvml.nvmlInit()
            self._handle = self._find(index)
        except self._nvml.NVMLError as error:
            raise LookupError(f"NVML has no GPU {index}: {error}") from error

    def memory(self) -> DeviceMemory:
        """Read the device's figures.

        The memory that this process holds counts as its peak, since frameworks keep memory that they have
        allocated. In a container NVML may not recognise this process; then all memory in use counts as
        others'.
        """
        figures = self._nvml.nvmlDeviceGetMemoryInfo(self._handle)
        ours = min(self._ours(), figures.used)
        return DeviceMemory(figures.total, figures.used - ours, ours, figures.total)

    def _ours(self) -> int:
        """Return the bytes that this process holds, or 0 if NVML does not list it."""
        with contextlib.suppress(self._nvml.NVMLError):
            for process in self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handle):
                if process.pid == os.getpid():
                    return process.usedGpuMemory or 0
        return 0

    def _find(self, index: int) -> Any:
        visible = [entry.strip() for entry in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
        # By number, this is right where CUDA counts as NVML does: CUDA_DEVICE_ORDER=PCI_BUS_ID, or like GPUs.
        name = visible[index] if index < len(visible) and visible[index] else str(index)
        if name.isdecimal():
            return self._nvml.nvmlDeviceGetHandleByIndex(int(name))
        return self._nvml.nvmlDeviceGetHandleByUUID(name)
