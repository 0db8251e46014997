"""The live page over real HTTP: its figures of real runs, and its behaviour when others end."""

import asyncio
import fnmatch
import signal
import socket
import tomllib

import psutil
import pytest

from batchsize_manager.client import ManagerClient
from evenpace.dashboard import event_stream
from evenpace.dashboard.event_stream import EventStream, Viewers
from evenpace.overview.job_view import JobView
from lab.bench.load_generators import Generators, LoadConfig
from rpc.address import Address
from tests import ROOT
from tests.evenpace.commands import evenpace
from tests.evenpace.dashboard.live_pages import Uneven, managed_page, page_of
from tests.services import (
    MemberWorker,
    has_ended,
    manager_service,
    restartable_manager,
    serving,
)

STATIC = ROOT / "evenpace" / "dashboard" / "static"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A manager with a page, for all tests that can share one."""
    with managed_page(tmp_path_factory.mktemp("page"), "--workers", "4") as page:
        yield page


@pytest.fixture(scope="module")
def run(page, wait_until):
    """A job with a straggler that goes on during the tests."""
    with Uneven(page.manager, "shared") as run:
        wait_until(lambda: page.shows("shared", iterations=30), "thirty iterations")
        yield run


def test_a_job_is_shown_as_its_records_say(page, run, wait_until):
    """The page's figures and timeline of a finished job are those of its records."""
    with Uneven(page.manager, "over") as over:
        wait_until(lambda: len(over.done) > 20, "twenty iterations")

    def ended():
        job = page.shows("over")
        if not job or job["state"] != "ended" or job["behind"]:
            return None
        # It is told of as soon as it is known; its last events are asked for after that.
        return {"worker-3 left", "worker-0 left"} <= {event["text"] for event in job["events"]} and job

    told = wait_until(ended, "its end")
    view = JobView()
    with ManagerClient(page.manager) as manager:
        while records := manager.history("over", view.last + 1)[1]:
            view.add(records)
    figures = view.figures({})
    assert told["figures"]["iterations"] == figures.iterations == view.last + 1
    assert told["headline"] == figures.headline
    assert told["figures"]["speedup"] == pytest.approx(figures.speedup, rel=1e-4)
    rows = page.get("/api/jobs/over/workers")["rows"]
    assert [row["worker"] for row in rows] == [worker.worker for worker in figures.workers]
    assert rows[0]["worker"] == told["slowest"] == told["straggler"]["worker"] == "worker-3"
    assert rows[0]["verdict"] == "chronic"
    timeline = page.get("/api/jobs/over/timeline?points=1000&worker=worker-3")
    whole = view.timeline(1000, ["worker-3"])
    assert timeline["iterations"] == whole.iterations
    assert timeline["workers"]["worker-3"]["batch_sizes"] == whole.workers["worker-3"].batch_sizes


def test_the_table_is_sorted_filtered_and_cut_by_the_server(page, run):
    """The requested rows come in order, by any column that is shown, with the number of all matching rows."""

    def table(query):
        told = page.get(f"/api/jobs/shared/workers?{query}")
        return told, [row["worker"] for row in told["rows"]]

    for name in (column["name"] for column in page.get("/api/page")["columns"]):
        numbers = [row[name] for row in table(f"sort={name}")[0]["rows"]]
        assert numbers == sorted(numbers, reverse=True)
    part, workers = table("sort=worker&descending=0&limit=2&offset=1")
    assert (workers, part["all"], part["matching"]) == (["worker-1", "worker-2"], 4, 4)
    one, workers = table("filter=ER-3")
    assert (workers, one["matching"]) == (["worker-3"], 1)
    assert table("offset=9")[1] == []
    slow, workers = table("verdict=chronic")
    assert {row["verdict"] for row in slow["rows"]} == {"chronic"}
    assert workers[0] == "worker-3"


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/api/jobs/nobody", 404, "no job 'nobody'"),
        ("/nothing", 404, ""),
        ("/static/", 404, ""),
        ("/static/../api.py", 404, ""),
        ("/static/%2e%2e/api.py", 404, ""),
        ("/api/jobs/shared/workers?sort=colour", 400, "sort 'colour'"),
        ("/api/jobs/shared/workers?limit=201", 400, "limit 201"),
        ("/api/jobs/shared/workers?offset=-1", 400, "offset '-1'"),
        ("/api/jobs/shared/workers?filter=" + 201 * "x", 400, "filter of 201 characters"),
        ("/api/jobs/shared/timeline?points=1001", 400, "points '1001'"),
        ("/api/jobs/shared/timeline?" + "&".join(f"worker={i}" for i in range(21)), 400, "21 workers"),
    ],
)
def test_bad_requests_are_answered_with_what_is_allowed(page, run, path, status, said):
    """A bad request is answered in one line that says what is allowed."""
    found, value, _ = page.ask(path)
    assert (found, said in str(value)) == (status, True), value


def test_viewers_are_bounded(tmp_path, wait_until):
    """A viewer beyond the limit is refused, and may come when another has gone."""
    with (
        serving(manager_service()) as manager,
        page_of(tmp_path, manager, "--max-viewers", "2") as page,
        page.events() as first,
    ):
        assert next(first)[0] == "page"
        with page.events() as second:
            assert next(second)[0] == "page"
            status, value, headers = page.ask("/api/stream")
            assert (status, headers["retry-after"]) == (503, "30")
            assert "too many viewers" in value["error"]
            assert page.get("/healthz")["status"] == "ok"

        wait_until(lambda: _closing(page.connect(), "/api/stream") == 200, "room for a third viewer")


def test_a_viewer_who_does_not_read_is_dropped(monkeypatch):
    """A viewer that does not read is dropped, and its place is free again."""
    monkeypatch.setattr(event_stream, "_SLOW_SECONDS", 0.05)
    viewers = Viewers(1)

    async def events():
        return {"page": {}}

    async def send(message):
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    async def receive():
        await asyncio.Event().wait()

    async def follow():
        await asyncio.wait_for(EventStream(viewers, events)({}, receive, send), 30)

    asyncio.run(follow())
    assert not viewers.is_full


@pytest.mark.ci
def test_the_page_outlives_a_manager_that_is_started_again(tmp_path, wait_until):
    """The page keeps its figures and shows an error while the manager is away; then it goes on."""
    with restartable_manager(tmp_path / "state") as manager, page_of(tmp_path, manager.address) as page:
        worker = MemberWorker(manager.address, "kept")
        for _ in range(3):
            worker.iterate()
        wait_until(lambda: page.shows("kept", iterations=3), "its iterations")
        with page.events("kept") as events:
            manager.kill()
            error = next(value["error"] for name, value in events if name == "page" and value["error"])
            assert str(manager.address) in error
            wait_until(lambda: page.get("/healthz")["manager"] == "unreachable", "the same by itself")
            assert page.get("/api/jobs/kept")["figures"]["iterations"] == 3
            manager.start()
            assert next(True for name, value in events if name == "page" and not value["error"])
        worker.client.close()


@pytest.mark.ci
def test_the_manager_goes_on_without_its_page(tmp_path, wait_until):
    """A page that dies is a line in the manager's log, and does not affect workers."""
    with managed_page(tmp_path) as page:
        worker = MemberWorker(page.manager)
        worker.iterate()
        (child,) = psutil.Process(page.popen.pid).children()
        child.kill()
        wait_until(lambda: "the page ended with status -9" in page.log.read_text(), "a line in the log")
        worker.iterate()
        worker.close()


@pytest.mark.ci
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_page_ends_with_its_manager(tmp_path, wait_until, number):
    """The page ends with its manager, however that ends, even with a viewer."""
    with managed_page(tmp_path) as page, page.events() as events:
        assert next(events)[0] == "page"
        (child,) = psutil.Process(page.popen.pid).children()
        page.popen.send_signal(number)
        assert page.popen.wait(120) == (0 if number == signal.SIGTERM else -number)
        wait_until(lambda: has_ended(child), "the page's end")
    assert "Traceback" not in page.log.read_text()


@pytest.mark.ci
@pytest.mark.parametrize("command", ["manager", "dashboard"])
def test_a_page_that_cannot_be_is_an_error_at_the_start(command):
    """A manager does not start without its page, as where a port is in use."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = Address(*other.getsockname())
        done = evenpace(command, "--http", taken, *_needed(command))
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert f"{taken} is in use" in done.stderr


@pytest.mark.ci
def test_a_thousand_workers(tmp_path, wait_until):
    """Events of a job of a thousand workers stay small, and the table comes in parts."""
    config = LoadConfig(jobs=1, workers=1000, seconds=1, compute=1.0)
    # A generator that is held up is not to be taken for a thousand silent workers.
    options = ("--workers", "1000", "--max-address-connections", "2000", "--silence", "120")
    with managed_page(tmp_path, *options) as page, Generators(config, page.manager) as generators:

        def rounds():
            generators.listen(0.2)
            return generators.rounds.slowest() > 3

        wait_until(rounds, "four rounds")
        with page.events("load-0") as events:
            job = next(
                job for name, job in events if name == "job" and job and job["figures"]["iterations"] > 2
            )
        assert (job["members"], sum(job["verdicts"].values()), job["names"]) == (1000, 1000, None)
        assert len(str(job)) < 20_000
        part = page.get("/api/jobs/load-0/workers?offset=975")
        assert (len(part["rows"]), part["all"]) == (25, 1000)
        speeds = [row["seconds_per_sample"]["median"] for row in part["rows"]]
        assert speeds == sorted(speeds, reverse=True)
        timeline = page.get("/api/jobs/load-0/timeline?worker=worker-999")
        assert set(timeline["workers"]) == {"worker-999"}
        generators.finish()
        assert not generators.errors


def test_every_file_of_the_page_is_packaged():
    """All of the page's files are package data, vendored files with their licences."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["evenpace.dashboard"]
    files = [f"static/{file.relative_to(STATIC)}" for file in STATIC.rglob("*") if file.is_file()]
    assert len(files) > 20
    # As setuptools globs: a star does not reach into folders.
    unpacked = [
        file
        for file in files
        if not any(fnmatch.fnmatch(file, p) and file.count("/") == p.count("/") for p in patterns)
    ]
    assert unpacked == []
    vendored = {file.name.partition(".")[0].partition("-")[0] for file in (STATIC / "vendor").glob("*.js")}
    assert all((STATIC / "vendor" / f"{name}.LICENSE").is_file() for name in vendored)


def _closing(connection, path):
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


def _needed(command):
    return ["--manager", "127.0.0.1:4300"] if command == "dashboard" else ["--listen", "127.0.0.1:0"]
