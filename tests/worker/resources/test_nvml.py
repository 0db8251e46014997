"""Figures of NVML; they are made up, since no GPU can be expected here."""

import os
from types import SimpleNamespace

import pytest

from worker.resources.nvml import Device

GIB = 2**30


class NvmlError(Exception):
    """An error of the made-up NVML."""


def nvml(tells_processes=True):
    """Return the NVML of a machine with two GPUs of 16 GiB; each has 2 GiB of this process, and 3 of another.

    The GPU's number in GiB is in use beyond that.
    """

    def handle(index):
        if index > 1:
            raise NvmlError("Invalid Argument")
        return f"GPU-{index}"

    def memory(of):
        used = (5 + int(of.removeprefix("GPU-"))) * GIB
        return SimpleNamespace(total=16 * GIB, used=used, free=16 * GIB - used)

    def processes(of):
        if not tells_processes:
            raise NvmlError("Not Supported")
        both = ((1, 3 * GIB), (os.getpid(), 2 * GIB))
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in both]

    return SimpleNamespace(
        NVMLError=NvmlError,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByIndex=handle,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetMemoryInfo=memory,
        nvmlDeviceGetComputeRunningProcesses=processes,
    )


def test_our_memory_is_told_from_that_of_others(monkeypatch):
    """Memory of this process counts as its peak; that of the driver and of others as others'."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    memory = Device(1, nvml()).memory()
    assert (memory.total, memory.others, memory.peak) == (16 * GIB, 4 * GIB, 2 * GIB)
    assert memory.share == pytest.approx(6 / 16)


def test_where_processes_are_not_told_all_is_others(monkeypatch):
    """Where NVML does not know processes, as in some containers, the device's share is still right."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    memory = Device(0, nvml(tells_processes=False)).memory()
    assert (memory.others, memory.peak) == (5 * GIB, 0)
    assert memory.share == pytest.approx(5 / 16)


@pytest.mark.parametrize("visible", ["1", "GPU-1", "1,0"])
def test_gpus_are_counted_as_frameworks_do(monkeypatch, visible):
    """The first visible GPU is number 0, whether it is named by number or by UUID."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert Device(0, nvml()).memory().others == 4 * GIB


def test_a_gpu_that_is_not_there_is_named(monkeypatch):
    """The error names the missing GPU, or the missing package."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(LookupError, match="no GPU 7: Invalid"):
        Device(7, nvml())
