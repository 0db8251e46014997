"""What the page answers, and to whom; the package's first lines list it."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import anyio
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

import evenpace
from batchsize_manager.policies import POLICIES, POLICIES_WITH_PREDICTOR
from evenpace.dashboard import actions, views
from evenpace.dashboard.config import PageConfig
from evenpace.dashboard.request_guard import refusal
from evenpace.dashboard.rights import Rights, asks_for_tokens, rights
from evenpace.dashboard.stream import EventStream, Viewers
from evenpace.dashboard.table import Part, cut
from evenpace.dashboard.watch import Watch
from evenpace.overview.feed import FollowedJob
from idl.errors import (
    EvenpaceError,
    InvalidRequestError,
    NotMemberError,
    UnauthorisedError,
    UnavailableError,
)
from predictors import PREDICTORS

STATIC = Path(__file__).with_name("static")

T = TypeVar("T")

_STATUS: dict[type[Exception], int] = {
    NotMemberError: 404,
    UnauthorisedError: 403,
    UnavailableError: 503,
    ValueError: 400,  # `InvalidRequestError` is one
    EvenpaceError: 502,
    ClientDisconnect: 408,  # in the midst of its change: nobody is told
}
_FRESH, _UNKNOWN_FRESH = 2.0, 0.5  # seconds; older answers of the manager are not told; nor of unknown jobs
_READERS = 4  # threads that work figures out
_CHANGES = 4  # at once; each has a connection to the manager of its own
_ASKED_SECONDS = 10.0  # for which it is known whether the manager asks for tokens
_MOST_POINTS, _MOST_WORKERS = 1000, 20  # of a timeline
_MOST_ITERATION = 2**62


class Api:
    """All the page's answers.

    Args:
        config: The page's.
        watch: What is known of the jobs.
        viewers: Those who follow.
    """

    def __init__(self, config: PageConfig, watch: Watch, viewers: Viewers) -> None:
        self._config = config
        self._watch = watch
        self._viewers = viewers
        self._readers = anyio.CapacityLimiter(_READERS)
        self._changes = anyio.CapacityLimiter(_CHANGES)
        self._tokens: tuple[float, bool] | None = None
        self._told: dict[str | None, tuple[int, Any]] = {}  # for all viewers, by the job that they look at

    def app(self) -> Starlette:
        """As an ASGI application."""
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
        return Starlette(routes=routes, exception_handlers=dict.fromkeys(_STATUS, _told))

    async def _index(self, request: Request) -> Response:
        return FileResponse(STATIC / "index.html")

    async def _health(self, request: Request) -> Response:
        """The page is well as long as it answers; that the manager is away is for it to tell."""
        error = self._watch.error
        return JSONResponse({"status": "ok", "manager": "unreachable" if error else "ok", "error": error})

    async def _page(self, request: Request) -> Response:
        try:
            may = await anyio.to_thread.run_sync(self._rights, request, limiter=self._readers)
        except EvenpaceError as error:
            may = Rights("none", f"Read-only for now: {error}")
        return JSONResponse(
            {
                "manager": str(self._config.manager),
                "version": evenpace.__version__,
                "change": may.change,
                "reason": may.reason,
                "policies": list(POLICIES),
                "predicting": sorted(POLICIES_WITH_PREDICTOR),
                "predictors": list(PREDICTORS),
                "error": self._watch.error,
            }
        )

    async def _jobs(self, request: Request) -> Response:
        def fresh_lines() -> list[dict[str, Any]]:
            self._watch.await_fresh(_FRESH)
            return self._lines()

        return JSONResponse({"jobs": await self._read(fresh_lines)})

    async def _job(self, request: Request) -> Response:
        return JSONResponse(await self._of_job(request, self._view))

    async def _workers(self, request: Request) -> Response:
        asked = request.query_params
        part = Part(
            sort=asked.get("sort", Part.sort),
            descending=asked.get("descending", "1") not in ("0", "false"),
            contains=asked.get("filter", ""),
            verdict=asked.get("verdict", ""),
            offset=_number(request, "offset", Part.offset, _MOST_ITERATION),
            limit=_number(request, "limit", Part.limit, _MOST_ITERATION),
        )

        def rows(name: str, job: FollowedJob) -> Any:
            return views.rounded(cut(views.worker_rows(job, self._watch.figures(name, job)), part))

        return JSONResponse(await self._of_job(request, rows))

    async def _timeline(self, request: Request) -> Response:
        points = _number(request, "points", 300, _MOST_POINTS)
        first = _number(request, "first", 0, _MOST_ITERATION)
        workers = request.query_params.getlist("worker")
        if not points:
            raise InvalidRequestError(f"points 0: must be 1 to {_MOST_POINTS}")
        if len(workers) > _MOST_WORKERS:
            raise InvalidRequestError(f"{len(workers)} workers: at most {_MOST_WORKERS} at once")

        def course(name: str, job: FollowedJob) -> Any:
            return views.timeline_view(self._watch.timeline(job, points, workers, first))

        return JSONResponse(await self._of_job(request, course))

    async def _stream(self, request: Request) -> Any:
        if self._viewers.full:
            answer = refusal(503, "too many viewers follow this page already; try again later")
            answer.headers["retry-after"] = "30"
            return answer
        name = request.query_params.get("job")
        self._watch.looked_at()

        async def events() -> dict[str, Any]:
            self._watch.looked_at()
            return {"page": {"error": self._watch.error}} | await self._news(name)

        return EventStream(self._viewers, events)

    async def _control(self, request: Request) -> Response:
        try:
            body = json.loads(await request.body())
        except (ValueError, RecursionError):
            raise InvalidRequestError("a change is JSON, and this is none") from None
        change, job = actions.parse(body), request.path_params["job"]
        if self._changes.available_tokens < 1:
            raise UnavailableError("other changes are under way; try again")

        def do() -> str:
            # Asked anew each time: a manager that was started again may be another in this.
            self._tokens = None
            may = self._rights(request)
            if may.change == "none":
                raise UnauthorisedError(may.reason)
            return actions.perform(
                self._config, change, job, _token(request) if may.change == "token" else None
            )

        return JSONResponse({"said": await anyio.to_thread.run_sync(do, limiter=self._changes)})

    def _rights(self, request: Request) -> Rights:
        now = time.monotonic()
        if self._tokens is None or now - self._tokens[0] > _ASKED_SECONDS:
            self._tokens = (now, asks_for_tokens(self._config))
        forwarded = any(name in request.headers for name in ("forwarded", "x-forwarded-for", "via"))
        host = request.client.host if request.client is not None else ""
        return rights(self._config, self._tokens[1], host, forwarded)

    async def _news(self, name: str | None) -> dict[str, Any]:
        """What a stream tells, made once for all who look at the same."""
        known = self._told.get(name)
        version = self._watch.version
        if known is None or known[0] != version:
            known = (version, await self._read(lambda: self._make_news(name)))
            self._told = {key: value for key, value in self._told.items() if value[0] == version}
            self._told[name] = known
        return known[1]  # type: ignore[no-any-return]

    def _make_news(self, name: str | None) -> dict[str, Any]:
        news: dict[str, Any] = {"jobs": self._lines()}
        if name is not None:
            with self._watch.reading() as jobs:
                # None: there is no such job.
                news["job"] = self._view(name, jobs[name]) if name in jobs else None
        return news

    def _lines(self) -> list[dict[str, Any]]:
        with self._watch.reading() as jobs:
            return [
                views.rounded(views.job_line(job, self._watch.figures(name, job)))
                for name, job in jobs.items()
            ]

    def _view(self, name: str, job: FollowedJob) -> dict[str, Any]:
        return views.job_view(job, self._watch.figures(name, job))

    async def _of_job(self, request: Request, make: Callable[[str, FollowedJob], T]) -> T:
        """What is made of the job that a request is about."""
        name = request.path_params["job"]

        def read() -> T:
            with self._watch.reading() as jobs:
                known = name in jobs
            self._watch.await_fresh(_FRESH if known else _UNKNOWN_FRESH)
            with self._watch.reading() as jobs:
                if name not in jobs:
                    raise NotMemberError(f"no job {name!r} is known here")
                return make(name, jobs[name])

        return await self._read(read)

    async def _read(self, make: Callable[[], T]) -> T:
        self._watch.looked_at()
        return await anyio.to_thread.run_sync(make, limiter=self._readers)


async def _told(request: Request, error: Exception) -> Response:
    """An error, in words."""
    status = next(status for kind, status in _STATUS.items() if isinstance(error, kind))
    return refusal(status, str(error))


def _token(request: Request) -> str:
    """The viewer's own.

    Raises:
        UnauthorisedError: There is none.
    """
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise UnauthorisedError("a change needs a token: Authorization: Bearer TOKEN")
    return token.strip()


def _number(request: Request, name: str, default: int, most: int) -> int:
    text = request.query_params.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 20) or int(text) > most:
        raise InvalidRequestError(f"{name} {text[:80]!r}: must be a number from 0 to {most}")
    return int(text)
