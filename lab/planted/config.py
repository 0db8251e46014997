"""The configuration of a run that plants findings: a value that checks itself."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from idl.settings import Setting, check_settings


@dataclass(frozen=True)
class PlantedConfig:
    """One run.

    Raises:
        ValueError: A value is not allowed.
    """

    only: Annotated[
        str, Setting("Plant those findings only whose symptom contains this.", metavar="TEXT")
    ] = ""
    checkout: Annotated[
        Path, Setting("The checkout to copy; it stays as it is.", folder=True, exists=True)
    ] = Path(".")
    jobs: Annotated[int, Setting("Findings planted at once, each in a copy of its own.", least=1)] = 1
    timeout: Annotated[float, Setting("Seconds for the tests of one finding.", above=0)] = 600.0
    check_first: Annotated[
        bool, Setting("Run the tests of each finding without it before; they must pass.")
    ] = False

    def __post_init__(self) -> None:
        check_settings(self)
