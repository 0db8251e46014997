"""Names of the kinds of devices that workers compute on."""

import os
import platform

import pytest

from idl.errors import InvalidRequestError
from worker.resources.device import Device, as_kind, cpu_kind, cpu_name
from worker.session import SessionConfig

CPU_INFO = "processor\t: 0\nmodel name\t: Xeon(R)   Gold\x00 6130 CPU @ 2.10GHz\nmodel name\t: another\n"


def test_a_cpu_is_named_with_the_cores_that_may_be_used(tmp_path):
    """The kind names the usable cores, so that half a processor is another kind; it is short."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "cpuinfo").write_text(CPU_INFO)
    usable = len(os.sched_getaffinity(0))
    assert cpu_kind(root=tmp_path).startswith(f"Xeon(R) Gold 6130 CPU @ 2.10GHz, {usable} core")
    assert cpu_kind(0.5, tmp_path) == "Xeon(R) Gold 6130 CPU @ 2.10GHz, 0.5 cores"
    assert cpu_kind(1.0, tmp_path) == "Xeon(R) Gold 6130 CPU @ 2.10GHz, 1 core"
    assert cpu_name(tmp_path / "none") == platform.machine()
    assert len(as_kind("x" * 500)) == 200


def test_what_a_device_is_found_to_be_adds_up():
    """A description that leaves something out changes nothing of it; the user's name comes first."""
    device, named = Device(), Device("my kind")
    assert (device.kind, device.threads) == (cpu_kind(), None)
    for each in (device, named):
        each.describe("NVIDIA\tH100")
        each.describe(threads=4)
        each.describe()
    assert (device.kind, device.threads) == ("NVIDIA H100", 4)
    assert (named.kind, named.threads) == ("my kind", 4)


def test_a_kind_that_cannot_be_told_is_refused():
    """A device's name must be a short printable text."""
    for device in ("", "a\nb", "x" * 201):
        with pytest.raises(InvalidRequestError, match="device"):
            SessionConfig(None, device=device)
