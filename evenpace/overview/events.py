"""Events of a job for readers: many changes of the batch's size in a row become one line.

It knows the manager's words for such a change alone, and not where events come from.
"""

import re
from collections.abc import Iterable
from itertools import groupby
from typing import NamedTuple, Protocol

_SIZE = re.compile(r"the batch size goes from ([\d,]+) to ([\d,]+): (.*)", re.DOTALL)
_FEW = 3  # changes in a row that are listed one by one


class Event(Protocol):
    """An event, as the wire and reports have it."""

    @property
    def at(self) -> float:
        """Seconds since 1970."""

    @property
    def text(self) -> str:
        """The event in words."""


class ShownEvent(NamedTuple):
    """An event to be shown; attributes as in `Event`."""

    at: float
    text: str


def condensed(events: Iterable[Event]) -> list[ShownEvent]:
    """Return events in the same order, of which each long row of changes of the batch's size is one.

    Its time is that of the last change.
    """
    shown = []
    for is_size, some in groupby(events, lambda event: _SIZE.fullmatch(event.text) is not None):
        row = [ShownEvent(event.at, event.text) for event in some]
        shown += [_as_one(row)] if is_size and len(row) > _FEW else row
    return shown


def _as_one(row: list[ShownEvent]) -> ShownEvent:
    first, last = (_SIZE.fullmatch(event.text) for event in (row[0], row[-1]))
    assert first is not None
    assert last is not None
    return ShownEvent(
        row[-1].at,
        f"the batch size goes from {first[1]} to {last[2]} in {len(row):,} steps; the last one: {last[3]}",
    )
