"""What trainings have ended with, kept in files: an experiment that was interrupted goes on where it was."""

import io
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from evenpace.reports import files


@dataclass(frozen=True)
class Outcome:
    """What a training has ended with."""

    state: torch.Tensor  # parameters and running statistics, (elements,)
    figures: dict[str, Any]  # other figures: numbers, texts, and lists of them


class Outcomes:
    """The outcomes of an experiment's trainings, in files that are named for them.

    `tell` is called with the title of a training whose outcome is taken from its file; with `again` none is.
    """

    def __init__(self, folder: Path, again: bool, tell: Callable[[str], object]) -> None:
        self._folder = folder
        self._again = again
        self._tell = tell

    def of(self, title: str, configuration: str, train: Callable[[], Outcome]) -> Outcome:
        """Return a training's outcome: from its file, if that is of the same configuration, or by `train`."""
        path = self._folder / f"{title}.pt"
        if not self._again and path.exists():
            kept = torch.load(path)
            if kept.pop("configuration") == configuration:
                self._tell(title)
                return Outcome(**kept)
        outcome = train()
        content = io.BytesIO()
        torch.save({"configuration": configuration, **asdict(outcome)}, content)
        self._folder.mkdir(parents=True, exist_ok=True)
        files.replace(path, content.getvalue())
        return outcome
