"""A finding, as a change to the code that brings it back and the tests that must find it."""

from dataclasses import dataclass
from pathlib import Path


class NotPlantedError(Exception):
    """A change does not fit the files any more; the message says where."""


@dataclass(frozen=True)
class Change:
    """A change to a file.

    Attributes:
        path: The file, relative to the checkout.
        before: A text that occurs in it exactly once.
        after: What stands there instead.
    """

    path: str
    before: str
    after: str

    def apply(self, checkout: Path) -> None:
        """Change the file of a checkout.

        Raises:
            NotPlantedError: There is no such file, or the text does not occur in it exactly once.
        """
        file = checkout / self.path
        if not file.is_file():
            raise NotPlantedError(f"{self.path}: there is no such file")
        text = file.read_text()
        if (occurrences := text.count(self.before)) != 1:
            raise NotPlantedError(f"{self.path}: {self.before!r} occurs {occurrences} times instead of once")
        file.write_text(text.replace(self.before, self.after))


@dataclass(frozen=True)
class Planted:
    """A finding of docs/track-record.md.

    Attributes:
        symptom: The beginning of its row there, which no other row has.
        changes: These take its mend out.
        tests: Arguments of pytest for tests of which at least one must fail then.
    """

    symptom: str
    changes: tuple[Change, ...]
    tests: str
