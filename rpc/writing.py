"""Errors of writing, which name their file: the system's own do so where it is opened, and not afterwards.

This module knows no format of a file.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path


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
