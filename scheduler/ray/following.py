"""Following a job on a Ray cluster until its end; nothing here draws."""

import time
from typing import Protocol

from idl.errors import DeadlineExceededError, UnavailableError
from scheduler.ray.cluster import JobHandle
from scheduler.ray.controller import News
from scheduler.ray.supervisor import Finish

_POLL_SECONDS = 0.5


class Shows(Protocol):
    """What a follower shows a job on."""

    def show(self, news: News) -> None:
        """Show what is new."""

    def note(self, text: str) -> None:
        """Show a line of the follower's own."""


def follow(handle: JobHandle, shows: Shows) -> Finish:
    """Show a job until it ends, and return its end.

    Raises:
        UnavailableError: Its controller has ended without one.
    """
    known: News | None = None
    while True:
        try:
            known = handle.news(known)
        except DeadlineExceededError as error:
            shows.note(str(error))
            continue
        shows.show(known)
        if known.finish is not None:
            return known.finish
        time.sleep(_POLL_SECONDS)


def end(handle: JobHandle, shows: Shows) -> Finish:
    """End a job, show it until then, and return its end.

    The cluster may have ended already, as by a signal to all processes: then the job was cancelled.
    """
    shows.note("ending the job ...")
    try:
        handle.cancel()
        return follow(handle, shows)
    except (UnavailableError, DeadlineExceededError) as error:
        shows.note(str(error))
        return Finish("cancelled", str(error))
