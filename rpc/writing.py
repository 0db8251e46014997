"""Writing of files: each as a whole, and with errors that name it.

The system's own do so where a file is opened, and not afterwards. This module knows no format of a file.
"""

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Have an error of the file system within the context name a file, in place of a draft of it.

    Raises:
        OSError: It cannot be written, as where the disk is full; it names `path`.
    """
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Write a file as a whole, which only its owner can read; it is on the disk at the context's end.

    Raises:
        OSError: The file cannot be written; it names `path`. What was there before is left.
    """
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with writing(path):
            with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            draft.replace(path)
    finally:
        with contextlib.suppress(OSError):
            draft.unlink()
