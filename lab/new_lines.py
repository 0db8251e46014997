"""The lines that files have got since they were looked at last."""

from collections import defaultdict
from pathlib import Path


class NewLines:
    """A reader of files that others write line by line; it returns each line once."""

    def __init__(self) -> None:
        self._read: defaultdict[Path, int] = defaultdict(int)  # bytes

    def of(self, path: Path) -> list[bytes]:
        """Return the lines that a file has got, without their ends; one that has not ended comes later.

        Raises:
            OSError: The file cannot be read.
        """
        with path.open("rb") as stream:
            stream.seek(self._read[path])
            new, end, _ = stream.read().rpartition(b"\n")
        self._read[path] += len(new) + len(end)
        return new.split(b"\n") if end else []
