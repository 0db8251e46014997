"""Limits of the history that a manager keeps: a value that checks itself."""

from dataclasses import dataclass
from math import inf
from typing import Annotated

from idl.settings import Checked, Setting

_DAY = 86400.0


@dataclass(frozen=True)
class Retention(Checked):
    """Limits of what is kept (ValueError: a number is out of its range)."""

    runs: Annotated[
        int,
        Setting("With --state: most ended jobs that are kept.", name="keep-runs", least=0),
    ] = 100
    days: Annotated[
        float | None,
        Setting(
            "With --state: days for which ended jobs are kept.  [default: no limit]",
            name="keep-days",
            least=0,
            below=inf,
        ),
    ] = None
    nbytes: Annotated[
        int,
        Setting(
            "With --state: MiB of each job's history, of which the oldest iterations are deleted; 0 for "
            "all. An iteration takes 52 to 68 bytes for each worker.",
            name="keep-mib",
            least=0,
            unit=2**20,
        ),
    ] = 2**29

    def oldest(self, now: float) -> float:
        """Return the time before which ended runs are deleted; like `now` in seconds since 1970."""
        return 0.0 if self.days is None else now - self.days * _DAY
