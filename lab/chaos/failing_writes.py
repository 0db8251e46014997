"""Writes to a service's state that fail with an error of the disk, by a library that is compiled when needed.

The library stands between a process and the C library; see `failing_writes.c`.
"""

import contextlib
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from lab.chaos.errors import NotPossibleHereError

_SOURCE = Path(__file__).with_suffix(".c")


def make_library(folder: Path) -> Path:
    """Compile the library into a folder, and return its path."""
    if shutil.which("cc") is None:
        raise NotPossibleHereError("no C compiler here: install Debian's `gcc` and `libc6-dev`")
    library = folder / "failing_writes.so"
    command = ["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(_SOURCE), "-ldl"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise NotPossibleHereError(f"the C compiler fails: {done.stderr.strip()}")
    return library


@dataclass(frozen=True)
class FailingWrites:
    """Switch for the writes of one process."""

    library: Path
    flag: Path  # file that exists while they fail
    below: Path  # folder of the files to which they fail

    def environment(self) -> dict[str, str]:
        """Return the variables with which the process is started; LD_PRELOAD may have to name others, too."""
        return {
            "LD_PRELOAD": str(self.library),
            "EVENPACE_FAILING": str(self.flag),
            "EVENPACE_FAILING_BELOW": f"{self.below}/",
        }

    def begin(self) -> None:
        """Let writes fail."""
        self.flag.touch()

    @property
    def failed(self) -> int:
        """Return how many have failed since `begin`."""
        with contextlib.suppress(FileNotFoundError):
            return self.flag.stat().st_size
        return 0

    def end(self) -> None:
        """Let writes succeed again."""
        self.flag.unlink(missing_ok=True)
