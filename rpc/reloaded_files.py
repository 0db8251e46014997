"""Values that are read from files, and read again when the files have changed: rotation without a restart."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from idl.errors import EvenpaceError

log = logging.getLogger(__name__)

T = TypeVar("T")


class Reloaded(Generic[T]):
    """A value that is read from files.

    While the files are being replaced they may not belong together: then the last value is used.

    Args:
        make: Reads them; raises an `EvenpaceError` where they cannot be used.
    """

    def __init__(self, files: Sequence[Path], make: Callable[[], T]) -> None:
        self._files = files
        self._make = make
        self._stamps = self._read_stamps()
        self._value = make()
        self._last_error = ""

    def current(self) -> T:
        """Return the value of the files as they are now, or as they last were valid."""
        stamps = self._read_stamps()
        if stamps != self._stamps:
            try:
                self._value = self._make()
            except EvenpaceError as error:
                if str(error) != self._last_error:  # log it once, not with every connection
                    self._last_error = str(error)
                    log.error("%s; going on with what was there before", error)
            else:
                self._stamps, self._last_error = stamps, ""
                log.info("read again: %s", ", ".join(map(str, self._files)))
        return self._value

    def _read_stamps(self) -> list[tuple[int, ...]]:
        """Return for each file a tuple that changes when the file does."""
        return [_stamp(file) for file in self._files]


def _stamp(file: Path) -> tuple[int, ...]:
    try:
        status = file.stat()
    except OSError:
        return ()
    return status.st_mtime_ns, status.st_size, status.st_ino
