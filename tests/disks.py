"""Lets a disk run out of room; the fixture `small_disk` in `conftest.py` gives one that soon has none."""

import contextlib
from pathlib import Path


def fill(path: Path) -> None:
    """Leave no room on a small disk."""
    with path.open("wb", buffering=0) as stream, contextlib.suppress(OSError):
        for size in (65536, 512):
            with contextlib.suppress(OSError):
                while stream.write(b"\0" * size):
                    pass
