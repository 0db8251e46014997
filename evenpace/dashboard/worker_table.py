"""Parts of a job's table of workers: filtered, sorted and cut by the server, not by the browser."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from evenpace.overview.columns import SHOWN
from evenpace.overview.stragglers import KINDS
from idl.errors import InvalidRequestError

MOST_ROWS = 200
_MOST_TEXT = 200  # characters of a filter; no worker's name is longer
SORTED_BY = (
    *("worker", "state", "verdict", "seconds_per_sample", "relative_to_best", "relative_to_others", "speed"),
    *("batch_size", "batch_processing_time", "waiting_share", "hidden_share", *SHOWN, "prediction_error"),
    "won_per_iteration",
)


@dataclass(frozen=True)
class TableRows:
    """The rows of the table that a viewer asks for (InvalidRequestError: a value is not allowed)."""

    sort: str = "seconds_per_sample"  # the column to sort by, one of `SORTED_BY`
    descending: bool = True  # whether the largest come first; rows without a value are last either way
    contains: str = ""  # text that workers' names contain, ignoring case
    verdict: str = ""  # verdict on the workers; empty: any
    offset: int = 0  # rows before the first
    limit: int = 25  # the most rows

    def __post_init__(self) -> None:
        if self.sort not in SORTED_BY:
            raise InvalidRequestError(f"sort {self.sort!r}: must be one of {', '.join(SORTED_BY)}")
        if self.verdict and self.verdict not in KINDS:
            raise InvalidRequestError(f"verdict {self.verdict!r}: must be one of {', '.join(KINDS)}")
        if len(self.contains) > _MOST_TEXT:
            raise InvalidRequestError(
                f"filter of {len(self.contains)} characters: at most {_MOST_TEXT} are allowed"
            )
        if self.offset < 0:
            raise InvalidRequestError(f"offset {self.offset}: must be at least 0")
        if not 1 <= self.limit <= MOST_ROWS:
            raise InvalidRequestError(f"limit {self.limit}: must be 1 to {MOST_ROWS}")


def cut(rows: Sequence[dict[str, Any]], part: TableRows) -> dict[str, Any]:
    """Return the rows of a part, with the number of all rows and of those that match.

    Args:
        rows: The rows of all workers, from `views.worker_rows`.
        part: The rows to return.
    """
    contains = part.contains.casefold()
    kept = [
        row for row in rows if contains in row["worker"].casefold() and part.verdict in ("", row["verdict"])
    ]
    known = [row for row in kept if _key(row, part.sort) is not None]
    unknown = [row for row in kept if _key(row, part.sort) is None]
    known.sort(key=lambda row: _key(row, part.sort), reverse=part.descending)
    shown = (known + unknown)[part.offset : part.offset + part.limit]
    return {"all": len(rows), "matching": len(kept), "offset": part.offset, "rows": shown}


def _key(row: dict[str, Any], column: str) -> Any:
    value = row[column]
    return value["median"] if isinstance(value, dict) else value
