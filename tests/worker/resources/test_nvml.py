"""What is made of NVML's figures; they are made up, since no GPU can be expected here."""

import os
from types import SimpleNamespace

import pytest

from worker.resources.nvml import Device

GIB = 2**30


class Nvml:
    """NVML of a machine with two GPUs of 16 GiB; on each, 2 GiB are ours and 3 GiB another's."""

    class NVMLError(Exception):
        """As NVML's."""

    def __init__(self, tells_processes=True):
        self._tells_processes = tells_processes

    def nvmlInit(self):
        """Nothing to do."""

    def nvmlDeviceGetHandleByIndex(self, index):
        """A handle, if there is such a GPU."""
        if index > 1:
            raise self.NVMLError("Invalid Argument")
        return f"GPU-{index}"

    def nvmlDeviceGetHandleByUUID(self, uuid):
        """The handle is the UUID."""
        return uuid

    def nvmlDeviceGetMemoryInfo(self, handle):
        """The GPU's number is the GiB that are in use beyond those of processes."""
        used = (5 + int(handle.removeprefix("GPU-"))) * GIB
        return SimpleNamespace(total=16 * GIB, used=used, free=16 * GIB - used)

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        """Ours and another's."""
        if not self._tells_processes:
            raise self.NVMLError("Not Supported")
        return [
            SimpleNamespace(pid=1, usedGpuMemory=3 * GIB),
            SimpleNamespace(pid=os.getpid(), usedGpuMemory=2 * GIB),
        ]


def test_our_memory_is_told_from_that_of_others(monkeypatch):
    """What this process holds is ours; what the driver and others hold is not to be had."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    memory = Device(1, Nvml()).memory()
    assert (memory.total, memory.others, memory.peak) == (16 * GIB, 4 * GIB, 2 * GIB)
    assert memory.share == pytest.approx(6 / 16)


def test_where_processes_are_not_told_all_is_others(monkeypatch):
    """In some containers NVML does not know processes: the share of the device is right all the same."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    memory = Device(0, Nvml(tells_processes=False)).memory()
    assert (memory.others, memory.peak) == (5 * GIB, 0)
    assert memory.share == pytest.approx(5 / 16)


@pytest.mark.parametrize("visible", ["1", "GPU-1", "1,0"])
def test_gpus_are_counted_as_frameworks_do(monkeypatch, visible):
    """The first visible GPU is number 0, be it named by its number or its UUID."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert Device(0, Nvml()).memory().others == 4 * GIB


def test_a_gpu_that_is_not_there_is_named(monkeypatch):
    """The error says which one, and what is missing."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(LookupError, match="no GPU 7: Invalid"):
        Device(7, Nvml())
