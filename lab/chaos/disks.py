"""Small file systems for services' state, which can be filled up.

They are mounted in a mount namespace of this process's own: whatever happens to it, nothing stays mounted.
It needs root.
"""

import contextlib
import ctypes
import errno
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from lab.chaos.errors import NotPossibleHereError

_CLONE_NEWNS = 0x00020000
_MIB = 128  # of each file system
_FILLER = ".full"
_PIECE = bytes(2**20)


@dataclass(frozen=True)
class Disk:
    """One small file system."""

    name: str  # name of the service whose state it keeps
    path: Path  # folder on which it is mounted

    def fill(self) -> str:
        """Fill it to the last byte; return the error of the last write.

        To be called again and again, since deleted files make room.
        """
        with (self.path / _FILLER).open("ab", buffering=0) as filler:
            size = len(_PIECE)
            while True:
                try:
                    filler.write(_PIECE[:size])
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    if size == 1:
                        return str(error)
                    size //= 2

    def clear(self) -> None:
        """Make room again."""
        with contextlib.suppress(FileNotFoundError):
            (self.path / _FILLER).unlink()


def private_mounts() -> None:
    """Make the mounts of this thread and its children, from now on, invisible to other processes."""
    libc = ctypes.CDLL(None, use_errno=True)
    if os.geteuid() or libc.unshare(_CLONE_NEWNS):
        reason = os.strerror(ctypes.get_errno()) if not os.geteuid() else "it takes root"
        raise NotPossibleHereError(f"no file systems of our own: {reason}")
    _mount("--make-rprivate", "/")


def make_disk(name: str, path: Path) -> Disk:
    """Mount a small file system; to be called after `private_mounts`."""
    path.mkdir(parents=True, exist_ok=True)
    _mount("-t", "tmpfs", "-o", f"size={_MIB}m,mode=755", "evenpace-chaos", str(path))
    return Disk(name, path)


def unmount(disk: Disk) -> None:
    """Unmount a disk, and keep its files in its folder on the file system below."""
    disk.clear()
    kept = disk.path.with_suffix(".kept")
    shutil.copytree(disk.path, kept)
    subprocess.run(["umount", "--lazy", str(disk.path)], check=True, capture_output=True)
    disk.path.rmdir()
    kept.rename(disk.path)


def _mount(*arguments: str) -> None:
    try:
        subprocess.run(["mount", *arguments], check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        reason = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else error
        raise NotPossibleHereError(f"no file systems of our own: {reason}") from error
