"""A check of GPUs, their driver, and whether torch was built for them."""

import re
import shutil
import subprocess
from collections.abc import Iterator

from evenpace.doctor.findings import MIB, Finding, Subject, note, ok, problem, size, warning
from evenpace.doctor.versions import torch_version
from worker.resources import nvml

_SECONDS = 3.0
_FIELDS = "name,driver_version,memory.used,memory.total"
_OTHERS = 0.1  # of a GPU's memory in use by others, from which on it is reported


def gpu(subject: Subject) -> Iterator[Finding]:
    """Compare the GPUs and the driver that nvidia-smi lists with torch's build."""
    version, cuda = torch_version()
    if shutil.which("nvidia-smi") is None:
        if any((subject.root / "dev").glob("nvidia[0-9]*")):
            do = "install NVIDIA's driver, or let the container have its tools"
            yield warning("GPU", "there are GPUs, but nvidia-smi is missing", do)
        elif cuda:
            yield note("GPU", f"none; torch is built for CUDA {cuda}, and will use CPUs")
        else:
            yield ok("GPU", "none; torch will use CPUs")
        return
    try:
        table = _nvidia_smi()
        listed = _nvidia_smi(f"--query-gpu={_FIELDS}", "--format=csv,noheader,nounits")
    except (OSError, subprocess.SubprocessError) as error:
        reason = getattr(error, "stdout", None) or error
        yield problem(
            "GPU", f"nvidia-smi does not work: {str(reason).strip()}", "see whether the driver is loaded"
        )
        return
    for number, line in enumerate(listed.strip().splitlines()):
        name, driver, *memory = (field.strip() for field in line.rsplit(",", 3))
        summary = f"{number}: {name}, driver {driver}"
        if not all(field.isdecimal() for field in memory):
            yield ok("GPU", summary)
            continue
        used, total = (int(field) * MIB for field in memory)
        if used > _OTHERS * total:
            yield note("GPU", f"{summary}; {size(used)} of {size(total)} in use by others")
        else:
            yield ok("GPU", f"{summary}; {size(total)}")
    yield _fit(table, version, cuda)
    try:
        nvml.Device()
    except LookupError as error:
        yield note("GPU", f"memory of GPUs is not seen outside of PyTorch: {error}")


def _fit(table: str, version: str | None, cuda: str | None) -> Finding:
    """Check whether the driver can run the CUDA version that torch was built for."""
    if version is None:
        return note("GPU", "torch is not installed: GPUs are not used by it")
    if cuda is None:
        return warning(
            "GPU",
            f"torch {version} is built for CPUs alone: GPUs are not used",
            "install torch from PyTorch's index for CUDA",
        )
    found = re.search(r"CUDA (?:UMD )?Version:\s*(\d+)\.(\d+)", table)
    if found is None:
        return note("GPU", f"torch is built for CUDA {cuda}; which one the driver can run is not known")
    can = int(found[1]), int(found[2])
    # Within a major version, drivers run programs built for a later minor one.
    if can[0] < int(cuda.partition(".")[0]):
        return problem(
            "GPU",
            f"the driver runs CUDA {can[0]}.{can[1]}, but torch is built for CUDA {cuda}",
            "install a newer driver, or torch for an older CUDA",
        )
    return ok("GPU", f"the driver runs CUDA {can[0]}.{can[1]}, torch is built for {cuda}")


def _nvidia_smi(*arguments: str) -> str:
    done = subprocess.run(
        ["nvidia-smi", *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=_SECONDS,
        errors="replace",
    )
    return done.stdout
