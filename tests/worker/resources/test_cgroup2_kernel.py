"""CPU limits and monitors on a real kernel with control groups of version 2, in an emulated machine."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT

TOOLS = ("qemu-system-x86_64", "busybox", "cpio", "apt-get", "dpkg-deb")


@pytest.mark.release
@pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, TOOLS)), reason=f"needs root, {', '.join(TOOLS)}"
)
def test_limits_and_monitors_hold_on_a_kernel_with_version_2(tmp_path):
    """Beside other processes, in slices, for ordinary users; and the tests of version 1 hold there, too."""
    here = Path(__file__).parent
    tests = [ROOT / "tests/scripts/cgroup2_cases.py", here / "test_cpu_limits.py"]
    script = tmp_path / "script"
    script.write_text(
        f"cd {ROOT}\nmkdir /sys/fs/cgroup/shell\necho $$ >/sys/fs/cgroup/shell/cgroup.procs\n"
        f"{sys.executable} -m pytest -p no:cacheprovider -q {' '.join(map(str, tests))} "
        "-k 'case or control_group or nest or sees_the_limit'\n"
    )
    kernel = ROOT / "runs" / "vm"
    kernel.mkdir(parents=True, exist_ok=True)
    command = [here / "vm", kernel, script]
    booted = subprocess.run(command, check=False, capture_output=True, text=True, timeout=1500)
    assert booted.returncode == 0, booted.stdout + booted.stderr
    assert " passed" in booted.stdout
    assert "skipped" not in booted.stdout
