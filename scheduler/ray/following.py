"""Following a job on a Ray cluster until its end; nothing here draws."""

import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from idl.errors import DeadlineExceededError, InvalidRequestError, UnavailableError
from scheduler.ray import cluster
from scheduler.ray.cluster import JobHandle
from scheduler.ray.cluster_scheduler import SchedulerHandle
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


def follow_shared(
    scheduler: SchedulerHandle,
    name: str,
    shows: Shows,
    standing: Callable[[Mapping[str, Any], Mapping[str, Any]], str],
    begin: Callable[[JobHandle], None],
) -> Finish:
    """Show a job of a shared cluster until it ends, also while it waits or is suspended; return its end.

    Args:
        standing: Returns how a job of the scheduler's status is, in words, from that and the status.
        begin: Called with the job before each of its attempts is shown.

    Raises:
        InvalidRequestError: The scheduler does not know the job any more.
    """
    said, over = "", 0  # what was said last of a job that waits; its last attempt that has ended
    while True:
        now = scheduler.ask("status")
        job = next((job for job in now["jobs"] if job["job"] == name), None)
        if job is None:
            raise InvalidRequestError(f"job {name!r} is not known any more")
        if job["state"] == "ended":
            return Finish(job["how"], job["reason"])
        try:
            handle = cluster.find(name, cluster.jobs() if job["attempt"] > over else ())
            begin(handle)
            finish = follow(handle, shows)
            over = job["attempt"]
            if finish.state != "suspended":
                return finish
        except (InvalidRequestError, UnavailableError):  # it has not begun yet, or has just ended
            if (text := standing(job, now)) != said:
                said = text
                shows.note(text)
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
