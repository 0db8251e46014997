"""Damage to a shard's checkpoints on disk, and the search for a copy that the job can lose.

It knows the files' names and checksums, and no process.
"""

import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ps.checkpoint import UnreadableError, check, read

_SUFFIX = ".checkpoint"
_SPARED = 2  # newest files of another shard, among which is the one that is left: it may write one more


@dataclass(frozen=True)
class SparedCopy:
    """A checkpoint that a job can lose, since all shards have an earlier one.

    Attributes:
        path: Its file.
        job: Name of the job.
        version: Its version.
    """

    path: Path
    job: str
    version: int


def copy_to_lose(shard: Path, others: Sequence[Path]) -> SparedCopy | None:
    """Find a job's newest checkpoint at a shard, where all shards have a whole one of an earlier version.

    Args:
        shard: Folder of the shard's state.
        others: Folders of the other shards' state.

    Returns:
        The checkpoint; None if no job can lose its own.
    """
    for folder in sorted(path for path in shard.glob("*") if path.is_dir()):
        newest, *earlier = itertools.chain(_whole(folder), [None])
        left = {version for version in earlier if version is not None}
        for other in others:
            left &= set(itertools.islice(_whole(other / folder.name), _SPARED))
        if newest is not None and left:
            path = folder / f"{newest:012d}{_SUFFIX}"
            return SparedCopy(path, read(path).job, newest)
    return None


def flip_bit(path: Path, place: float) -> str:
    """Flip one bit of a file, at a place from 0, its begin, to 1; return where, in words."""
    with path.open("r+b") as file:
        bits = 8 * file.seek(0, os.SEEK_END)
        byte, bit = divmod(min(int(place * bits), bits - 1), 8)
        file.seek(byte)
        (value,) = file.read(1)
        file.seek(byte)
        file.write(bytes([value ^ 1 << bit]))
    return f"bit {bit} of byte {byte} of {path.name} flipped"


def remove(path: Path) -> str:
    """Remove a file; return so, in words."""
    path.unlink()
    return f"{path.name} removed"


def _whole(folder: Path) -> Iterator[int]:
    """Yield the versions of a job's whole checkpoints, the newest first; others end them.

    What is damaged stays on the disk until its version is written again.
    """
    for path in sorted(folder.glob(f"*{_SUFFIX}"), reverse=True):
        try:
            check(path)
        except (OSError, UnreadableError):
            continue
        yield int(path.stem)
