"""What NVML, the library behind nvidia-smi, says of a GPU's memory: for frameworks that do not say it.

It needs the package nvidia-ml-py (the extra `nvml`), and knows no framework and no session.
"""

import contextlib
import os
from typing import Any

from worker.resources.memory import DeviceMemory

try:
    import pynvml
except ImportError:
    pynvml = None


class Device:
    """One GPU as NVML sees it.

    Args:
        index: The GPU's number as the framework counts, among those in `CUDA_VISIBLE_DEVICES`.
        nvml: NVML's Python module; found by itself, unless given.

    Raises:
        LookupError: NVML is not to be had here, or has no such GPU.
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
        """The device's figures now.

        What this process holds counts as its peak: frameworks keep what they have taken. In a container
        NVML may not know which process is ours; then all that is in use is others'.
        """
        figures = self._nvml.nvmlDeviceGetMemoryInfo(self._handle)
        ours = min(self._ours(), figures.used)
        return DeviceMemory(figures.total, figures.used - ours, ours, figures.total)

    def _ours(self) -> int:
        """Bytes that this process holds, as far as NVML tells."""
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
