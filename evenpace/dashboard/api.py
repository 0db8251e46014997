"""The page's HTTP interface; the package's docstring lists it."""

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from math import inf
from typing import Any, TypeVar

import anyio
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from batchsize_manager.client import ManagerClient
from batchsize_manager.policies import POLICIES, POLICIES_WITH_PREDICTOR
from batchsize_manager.sizers import MEASURING, SIZERS
from evenpace.dashboard import views
from evenpace.dashboard.config import ManagerPageConfig
from evenpace.dashboard.event_stream import Viewers, follow
from evenpace.dashboard.manager_poller import ManagerPoller
from evenpace.dashboard.page_server import STATIC, Page
from evenpace.dashboard.request_guard import refusal
from evenpace.dashboard.rights import Rights, asks_for_tokens, rights
from evenpace.dashboard.worker_table import TableRows, cut
from evenpace.job_changes import parse
from evenpace.overview import terms
from evenpace.overview.columns import SHOWN
from evenpace.overview.feed import FollowedJob
from idl.errors import (
    EvenpaceError,
    InvalidRequestError,
    NotMemberError,
    UnauthorisedError,
    UnavailableError,
)
from idl.version import __version__
from predictors import PREDICTORS

T = TypeVar("T")

_STATUS: dict[type[Exception], int] = {
    NotMemberError: 404,
    UnauthorisedError: 403,
    UnavailableError: 503,
    ValueError: 400,  # `InvalidRequestError` is one
    EvenpaceError: 502,
    ClientDisconnect: 408,  # in the middle of its change: nobody receives this
}
_FRESH, _UNKNOWN_FRESH = 2.0, 0.5  # seconds; largest age of the manager's answer for known, other jobs
_READERS = 4  # threads that compute figures
_CHANGES = 4  # at once; each has a connection to the manager of its own
_ASKED_SECONDS = 10.0  # for which an answer holds on whether the manager asks for tokens
_MOST_POINTS, _MOST_WORKERS = 1000, 20  # of a timeline
_MOST_ITERATION = 2**62


def manager_page(config: ManagerPageConfig) -> Page:
    """Return the page about a manager's jobs."""
    poller, viewers = ManagerPoller(config), Viewers(config.viewers)
    return Page(Api(config, poller, viewers).app(), poller.polling, viewers)


class Api:
    """The handlers of all requests.

    Args:
        config: The page's configuration.
        viewers: The viewers who follow the event stream.
    """

    def __init__(self, config: ManagerPageConfig, poller: ManagerPoller, viewers: Viewers) -> None:
        self._config = config
        self._poller = poller
        self._polling = poller.polling
        self._viewers = viewers
        self._readers = anyio.CapacityLimiter(_READERS)
        self._changes = anyio.CapacityLimiter(_CHANGES)
        self._tokens: tuple[float, bool] | None = None
        self._events: dict[str | None, tuple[int, Any]] = {}  # for all viewers, by the job that they look at

    def app(self) -> Starlette:
        """Return the handlers as an ASGI application."""
        routes = [
            Route("/", self._index),
            Route("/healthz", self._health),
            Route("/api/page", self._page),
            Route("/api/jobs", self._jobs),
            Route("/api/jobs/{job}", self._job),
            Route("/api/jobs/{job}/workers", self._workers),
            Route("/api/jobs/{job}/timeline", self._timeline),
            Route("/api/jobs/{job}/control", self._control, methods=["POST"]),
            Route("/api/stream", self._stream),
            Mount("/static", StaticFiles(directory=STATIC)),
        ]
        return Starlette(routes=routes, exception_handlers=dict.fromkeys(_STATUS, _error_response))

    async def _index(self, request: Request) -> Response:
        return FileResponse(STATIC / "index.html")

    async def _health(self, request: Request) -> Response:
        """Report that the page runs, and whether it reaches the manager."""
        error = self._polling.error
        return JSONResponse({"status": "ok", "manager": "unreachable" if error else "ok", "error": error})

    async def _page(self, request: Request) -> Response:
        try:
            may = await anyio.to_thread.run_sync(self._rights, request, limiter=self._readers)
        except EvenpaceError as error:
            may = Rights("none", f"Read-only for now: {error}")
        return JSONResponse(
            {
                "manager": str(self._config.manager),
                "version": __version__,
                "change": may.change,
                "reason": may.reason,
                "policies": list(POLICIES),
                "predicting": sorted(POLICIES_WITH_PREDICTOR),
                "predictors": list(PREDICTORS),
                "sizers": list(SIZERS),
                "choosing": sorted(MEASURING),
                "terms": {"verdicts": terms.VERDICTS, "parts": terms.PARTS, "columns": terms.COLUMNS},
                "columns": [asdict(shown) | {"name": name} for name, shown in SHOWN.items()],
                "error": self._polling.error,
            }
        )

    async def _jobs(self, request: Request) -> Response:
        def fresh_lines() -> list[dict[str, Any]]:
            self._polling.await_fresh(_FRESH)
            return self._lines()

        return JSONResponse({"jobs": await self._read(fresh_lines)})

    async def _job(self, request: Request) -> Response:
        return JSONResponse(await self._of_job(request, self._view))

    async def _workers(self, request: Request) -> Response:
        asked = request.query_params
        part = TableRows(
            sort=asked.get("sort", TableRows.sort),
            descending=asked.get("descending", "1") not in ("0", "false"),
            contains=asked.get("filter", ""),
            verdict=asked.get("verdict", ""),
            offset=_number(request, "offset", TableRows.offset, _MOST_ITERATION),
            limit=_number(request, "limit", TableRows.limit, _MOST_ITERATION),
        )

        def rows(name: str, job: FollowedJob) -> Any:
            return views.rounded(cut(views.worker_rows(job, self._poller.figures(name, job)), part))

        return JSONResponse(await self._of_job(request, rows))

    async def _timeline(self, request: Request) -> Response:
        points = _number(request, "points", 300, _MOST_POINTS)
        last = _number(request, "last", 0, _MOST_ITERATION) or inf
        workers = request.query_params.getlist("worker")
        if not points:
            raise InvalidRequestError(f"points 0: must be 1 to {_MOST_POINTS}")
        if len(workers) > _MOST_WORKERS:
            raise InvalidRequestError(f"{len(workers)} workers: at most {_MOST_WORKERS} at once")

        def timeline(name: str, job: FollowedJob) -> Any:
            return views.timeline_view(self._poller.timeline(job, points, workers, last))

        return JSONResponse(await self._of_job(request, timeline))

    async def _stream(self, request: Request) -> Any:
        name = request.query_params.get("job")

        async def events() -> dict[str, Any]:
            self._polling.note_viewer()
            return {"page": {"error": self._polling.error}} | await self._news(name)

        return follow(self._viewers, events)

    async def _control(self, request: Request) -> Response:
        try:
            body = json.loads(await request.body())
        except (ValueError, RecursionError):
            raise InvalidRequestError("a change is JSON, and this is none") from None
        change, job = parse(body), request.path_params["job"]
        if self._changes.available_tokens < 1:
            raise UnavailableError("other changes are under way; try again")

        def do() -> str:
            # Asked each time: a restarted manager may differ in this.
            self._tokens = None
            may = self._rights(request)
            if may.change == "none":
                raise UnauthorisedError(may.reason)
            token = _token(request) if may.change == "token" else None
            viewers = self._config.credentials.with_token(token)  # never the page's own token
            with ManagerClient(self._config.manager, viewers) as manager:
                return change(manager, job)

        return JSONResponse({"said": await anyio.to_thread.run_sync(do, limiter=self._changes)})

    def _rights(self, request: Request) -> Rights:
        now = time.monotonic()
        if self._tokens is None or now - self._tokens[0] > _ASKED_SECONDS:
            self._tokens = (now, asks_for_tokens(self._config))
        forwarded = any(name in request.headers for name in ("forwarded", "x-forwarded-for", "via"))
        host = request.client.host if request.client is not None else ""
        return rights(self._config, self._tokens[1], host, forwarded)

    async def _news(self, name: str | None) -> dict[str, Any]:
        """Return the events of a stream, made once for all viewers of the same job."""
        known = self._events.get(name)
        version = self._polling.version
        if known is None or known[0] != version:
            known = (version, await self._read(lambda: self._make_news(name)))
            self._events = {key: value for key, value in self._events.items() if value[0] == version}
            self._events[name] = known
        return known[1]  # type: ignore[no-any-return]

    def _make_news(self, name: str | None) -> dict[str, Any]:
        news: dict[str, Any] = {"jobs": self._lines()}
        if name is not None:
            with self._poller.reading() as jobs:
                # None: there is no such job.
                news["job"] = self._view(name, jobs[name]) if name in jobs else None
        return news

    def _lines(self) -> list[dict[str, Any]]:
        with self._poller.reading() as jobs:
            return [
                views.rounded(views.job_line(job, self._poller.figures(name, job)))
                for name, job in jobs.items()
            ]

    def _view(self, name: str, job: FollowedJob) -> dict[str, Any]:
        return views.job_view(job, self._poller.figures(name, job))

    async def _of_job(self, request: Request, make: Callable[[str, FollowedJob], T]) -> T:
        """Return what `make` returns for the job that a request names."""
        name = request.path_params["job"]

        def read() -> T:
            with self._poller.reading() as jobs:
                known = name in jobs
            self._polling.await_fresh(_FRESH if known else _UNKNOWN_FRESH)
            with self._poller.reading() as jobs:
                if name not in jobs:
                    raise NotMemberError(f"no job {name!r} is known here")
                return make(name, jobs[name])

        return await self._read(read)

    async def _read(self, make: Callable[[], T]) -> T:
        self._polling.note_viewer()
        return await anyio.to_thread.run_sync(make, limiter=self._readers)


async def _error_response(request: Request, error: Exception) -> Response:
    """Return the answer that tells of an error, in words."""
    status = next(status for kind, status in _STATUS.items() if isinstance(error, kind))
    return refusal(status, str(error))


def _token(request: Request) -> str:
    """Return the viewer's own token (UnauthorisedError: the request has no token)."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise UnauthorisedError("a change needs a token: Authorization: Bearer TOKEN")
    return token.strip()


def _number(request: Request, name: str, default: int, most: int) -> int:
    text = request.query_params.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 20) or int(text) > most:
        raise InvalidRequestError(f"{name} {text[:80]!r}: must be a number from 0 to {most}")
    return int(text)
