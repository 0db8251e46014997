"""Wall clocks that jump, by libfaketime: each process's own; its monotonic clock stays as it is."""

import os
from pathlib import Path

from evenpace.reports import files
from lab.chaos.errors import NotPossibleHereError

_PLACES = ("/usr/lib", "/usr/local/lib", "/usr/lib64")
_LIBRARY = "faketime/libfaketimeMT.so.1"


def find_library() -> Path:
    """Return the path of libfaketime (NotPossibleHereError: libfaketime is not installed)."""
    for place in _PLACES:
        for found in (*Path(place).glob(_LIBRARY), *Path(place).glob(f"*/{_LIBRARY}")):
            return found
    raise NotPossibleHereError("no libfaketime here: install Debian's `faketime`")


def environment(library: Path, file: Path) -> dict[str, str]:
    """Return the variables with which a process follows the offset in `file`, within a second or two."""
    return {
        "LD_PRELOAD": str(library),
        "FAKETIME_TIMESTAMP_FILE": str(file),
        "FAKETIME_CACHE_DURATION": "1",  # seconds; without it, each look at the time reads the file
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }


def unlink_shared_memory() -> None:
    """Remove the names of this process's shared memory in /dev/shm, which libfaketime has opened by now.

    It removes them when the process ends, but not when that is killed; `faketime` then fails in a later
    process with the same id. Children make their own.
    """
    for prefix, name in zip(("sem.", ""), os.environ.pop("FAKETIME_SHARED", "").split(), strict=False):
        Path("/dev/shm", prefix + name.removeprefix("/")).unlink(missing_ok=True)


def set_offset(file: Path, seconds: float) -> None:
    """Set the clocks that follow `file` ahead of the true time by some seconds."""
    files.replace(file, f"{seconds:+.0f}\n".encode())
