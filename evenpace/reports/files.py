"""Files written in one step: a reader sees the old one or the new one, never a part."""

import contextlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rpc.writing import writing


def write_json(content: Mapping[str, Any], path: Path) -> None:
    """Write `content` as JSON, in a folder that is made if need be.

    Numbers that JSON does not have (a diverged loss) become null.

    Raises:
        OSError: The file cannot be written.
    """
    text = json.dumps(_without_nan(content), indent=1, allow_nan=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace(path, (text + "\n").encode())


def replace(path: Path, content: bytes) -> None:
    """Write `content` to `path`; if that fails, the old content stays.

    Raises:
        OSError: The file cannot be written; it names `path`.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with writing(path):
            draft.write_bytes(content)
            draft.replace(path)
    finally:
        with contextlib.suppress(OSError):
            draft.unlink()


def check_room(path: Path, size: int = 2**16) -> None:
    """Check that a file of `size` bytes can be written to `path`, which stays as it is.

    To be called before figures are measured that take long.

    Raises:
        OSError: It cannot; it names `path`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with writing(path):
            draft.write_bytes(bytes(size))
    finally:
        with contextlib.suppress(OSError):
            draft.unlink()


def _without_nan(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
