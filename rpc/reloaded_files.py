"""Values that are made of files, and made again when the files have changed: rotation without a restart."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from idl.errors import InvalidRequestError

log = logging.getLogger(__name__)

T = TypeVar("T")


class Reloaded(Generic[T]):
    """A value of some files.

    While the files are being replaced they may not fit together: then the last value goes on.

    Args:
        files: What to look at.
        make: Reads them; raises `InvalidRequestError` where they are of no use.
    """

    def __init__(self, files: Sequence[Path], make: Callable[[], T]) -> None:
        self._files = files
        self._make = make
        self._stamps = self._look()
        self._value = make()
        self._complaint = ""

    def current(self) -> T:
        """The value of the files as they are now, or as they last made sense."""
        stamps = self._look()
        if stamps != self._stamps:
            try:
                self._value = self._make()
            except InvalidRequestError as error:
                if str(error) != self._complaint:  # once, not with every connection
                    self._complaint = str(error)
                    log.error("%s; going on with what was there before", error)
            else:
                self._stamps, self._complaint = stamps, ""
                log.info("read again: %s", ", ".join(map(str, self._files)))
        return self._value

    def _look(self) -> list[tuple[int, ...]]:
        """What changes when a file does."""
        return [_stamp(file) for file in self._files]


def _stamp(file: Path) -> tuple[int, ...]:
    try:
        status = file.stat()
    except OSError:
        return ()
    return status.st_mtime_ns, status.st_size, status.st_ino
