"""Records of a job that are no longer in memory, read from its manager's state."""

import asyncio
import math
from pathlib import Path

from batchsize_manager.storage.state_format import StateError
from batchsize_manager.storage.state_reader import open_state
from batchsize_manager.storage.state_writer import StateWriter
from idl.records import IterationRecord

_READ_AT_ONCE = 50_000  # records of workers


async def read_past(
    writer: StateWriter, job: str, run: str | None, first: int, limit: int
) -> tuple[str, list[IterationRecord]] | None:
    """Read records from the file that a writer has open, without holding up the event loop.

    Args:
        run: The run of the job; None for its last.
        first: The first iteration asked for.
        limit: The most iterations to return.

    Returns:
        The run and its records, oldest first; None if there is no such run.

    Raises:
        StateError: The file cannot be read, or lacks what has happened since its writer has ended.
    """
    if writer.has_ended:
        raise StateError("it is not written any more: start the manager again; its log says why")
    return await asyncio.to_thread(_read, writer.path.parent, job, run, first, limit)


def join_records(past: list[IterationRecord], recent: list[IterationRecord]) -> list[IterationRecord]:
    """Return records from the file, then those in memory, unless some between are not written yet."""
    begins = recent[0].iteration if recent else math.inf
    earlier = [record for record in past if record.iteration < begins]
    if earlier and earlier[-1].iteration + 1 < begins:
        return earlier  # the rest is for the next call
    return [*earlier, *recent]


def _read(
    folder: Path, job: str, run: str | None, first: int, limit: int
) -> tuple[str, list[IterationRecord]] | None:
    with open_state(folder) as reader:
        found = reader.last_run(job, run)
        if found is None:
            return None
        name, members = found
        some = max(1, _READ_AT_ONCE // max(1, members))
        return name, reader.records(name, first, min(limit, some))
