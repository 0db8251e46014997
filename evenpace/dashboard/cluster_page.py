"""The live page about a shared cluster: who has what, who waits for what, and who had what when.

It is made once for all viewers, in the thread that asks the scheduler, in parts; viewers get those that have
changed. Nothing can be changed by it.

    GET /            the page
    GET /healthz     whether the page runs, and whether it reaches the scheduler
    GET /api/status  what `evenpace cluster status --json` prints
    GET /api/stream  server-sent events: the parts of the page, by their names, at once and when they change
"""

from collections.abc import Sequence
from typing import Any, Protocol

import anyio
from markupsafe import Markup
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from evenpace.dashboard.config import PageConfig
from evenpace.dashboard.event_stream import Viewers, follow
from evenpace.dashboard.page_server import STATIC, Page
from evenpace.dashboard.polling import Polling
from evenpace.dashboard.request_guard import refusal
from evenpace.overview import cluster_status
from evenpace.reports import numbers
from evenpace.reports.cluster_page import job_styles, picture
from evenpace.reports.style import WorkerStyle
from evenpace.reports.templates import find_template
from scheduler.cluster.history import Line, account

_FRESH = 2.0  # seconds; largest age of what a request is answered with
_JOBS = 20  # jobs that have ended, and are shown
_LINES = 20  # of the log
# What has happened in a smaller share of the record's time would be two pixels wide in the picture, which is
# not drawn again before.
_VISIBLE = 0.002
_PARTS = ("summary", "jobs", "nodes", "picture", "log")


class Scheduler(Protocol):
    """The scheduler of a cluster, or what stands for it."""

    def status(self) -> dict[str, Any]:
        """Return how the cluster is shared (EvenpaceError: there is no answer)."""

    def record(self) -> Sequence[Line]:
        """Return the record of who had what, the oldest line first (EvenpaceError: there is no answer)."""


def cluster_page(scheduler: Scheduler, config: PageConfig) -> Page:
    """Return the page about the cluster of a scheduler."""
    poller, viewers = _ClusterPoller(scheduler, config), Viewers(config.viewers)
    return Page(_Requests(poller, viewers).app(), poller.polling, viewers)


class _ClusterPoller:
    """The latest status of the cluster, and the page's parts that show it."""

    def __init__(self, scheduler: Scheduler, config: PageConfig) -> None:
        self._scheduler = scheduler
        self._drawn_until = 0.0  # the last moment in the picture; seconds since 1970
        self._styles: dict[str, WorkerStyle] = {}  # in the picture, by job
        self._parts: dict[str, str] = dict.fromkeys(_PARTS, "")
        self.status: dict[str, Any] | None = None
        self.polling = Polling("the cluster's scheduler", self._poll, config)

    @property
    def parts(self) -> dict[str, str]:
        """The content of the page's parts, by name, as HTML."""
        return {"notice": str(Markup.escape(self._notice())), **self._parts}

    def _notice(self) -> str:
        """Return what is wrong, in words; empty where all is well."""
        now, error = self.status, self.polling.error
        if error:
            shown = f" What is shown was so at {numbers.moment(now['now'])}." if now is not None else ""
            return f"Not live: {error}. The page asks again.{shown}"
        if now is not None and now["trouble"]:
            return f"The scheduler is in trouble: {now['trouble']}"
        return "The cluster goes down: its jobs are suspended." if now is not None and now["closing"] else ""

    def _poll(self) -> None:
        with self.polling.asking():
            now = self._scheduler.status()
        made = find_template("cluster_live_parts.html.j2").module
        parts = {
            "picture": self._picture(now) or self._parts["picture"],
            "summary": made.summary(  # type: ignore[attr-defined]
                [
                    ("Policy", now["policy"]),
                    ("Folder", now["folder"]),
                    ("Devices in use", cluster_status.in_use(now)),
                    ("Queue, in order of submission", ", ".join(cluster_status.queue(now)) or "no job waits"),
                ]
            ),
            "jobs": made.jobs(cluster_status.job_rows(now, _JOBS), self._styles),  # type: ignore[attr-defined]
            "nodes": made.nodes(cluster_status.node_rows(now), now["device"]),  # type: ignore[attr-defined]
            "log": made.log(now["log"][: -_LINES - 1 : -1]),  # type: ignore[attr-defined]
        }
        self._parts = {name: str(part) for name, part in parts.items()}
        self.status = now

    def _picture(self, now: dict[str, Any]) -> str:
        """Return the picture of who had what; empty where it would look as the last one does."""
        if abs(now["now"] - self._drawn_until) < _VISIBLE * (now["now"] - now["begun"]):
            return ""
        with self.polling.asking():
            past = account(self._scheduler.record(), now["now"])
        self._drawn_until = now["now"]
        # A job that has the name of an earlier one comes after it.
        self._styles = {life.job: style for life, style in zip(past.lives, job_styles(past), strict=True)}
        return picture(past) or "No node was there."


class _Requests:
    """The handlers of all requests."""

    def __init__(self, poller: _ClusterPoller, viewers: Viewers) -> None:
        self._poller = poller
        self._viewers = viewers

    def app(self) -> Starlette:
        """Return the handlers as an ASGI application."""
        return Starlette(
            routes=[
                Route("/", self._index),
                Route("/cluster.css", self._style),
                Route("/healthz", self._health),
                Route("/api/status", self._status),
                Route("/api/stream", self._stream),
                Mount("/static", StaticFiles(directory=STATIC)),
            ]
        )

    async def _index(self, request: Request) -> Response:
        await self._await_fresh()
        parts = {name: Markup(part) for name, part in self._poller.parts.items()}
        return HTMLResponse(find_template("cluster_live.html.j2").render(parts=parts))

    async def _style(self, request: Request) -> Response:
        return Response(find_template("cluster_live.css.j2").render(), media_type="text/css")

    async def _health(self, request: Request) -> Response:
        """Report that the page runs, and whether it reaches the scheduler."""
        error = self._poller.polling.error
        return JSONResponse({"status": "ok", "scheduler": "unreachable" if error else "ok", "error": error})

    async def _status(self, request: Request) -> Response:
        await self._await_fresh()
        error, now = self._poller.polling.error, self._poller.status
        return refusal(503, error) if error else JSONResponse(now)

    async def _stream(self, request: Request) -> Any:
        async def events() -> dict[str, Any]:
            self._poller.polling.note_viewer()
            return self._poller.parts

        return follow(self._viewers, events)

    async def _await_fresh(self) -> None:
        await anyio.to_thread.run_sync(self._poller.polling.await_fresh, _FRESH)
