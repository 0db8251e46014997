"""The live page about a shared cluster over real HTTP, with a scheduler that the test plays."""

import contextlib
import itertools
import signal
import socket
import time

import pytest

from tests.evenpace.commands import invoke
from tests.evenpace.dashboard.cluster_pages import BEGAN, played_cluster
from tests.evenpace.reports.pages import Page as Read

PARTS = {"notice", "summary", "jobs", "nodes", "picture", "log"}


@pytest.fixture
def cluster(tmp_path):
    """A page, and the scheduler that it shows."""
    with played_cluster(tmp_path) as cluster:
        yield cluster


def first_events(events):
    """Return what a new viewer gets: all parts."""
    return dict(itertools.islice(events, len(PARTS)))


def until(events, name, words):
    """Return the parts that are sent with the one of this name that has these words, and before it."""
    changed = {}
    for part, value in events:
        changed[part] = value
        if part == name and words in value:
            break
    rest = itertools.takewhile(lambda event: event[0] != "beat", events)
    return {part: value for part, value in (*changed.items(), *rest) if part != "beat"}


def test_the_page_shows_who_has_what_and_who_waits(cluster):
    """With the reasons, the queue, the nodes, the picture and the log; names are text."""
    page, _ = cluster
    source = page.get("/")
    read = Read(source)
    assert read.row("first")[1:6] == ["running", "1", "4", "4", "4 on 10.0.0.1"]
    assert read.row("first")[6:] == ["2 min", "2023-11-14 22:13:21 UTC", "decided by priority"]
    why = "submitted; number 1 of 1 that wait; of 4 devices first has 4"
    assert read.row("<b>second</b>")[8] == why
    assert read.row("Policy")[1] == "priority"
    assert read.row("Devices in use")[1] == "100% now, 50% since the record began 2 min ago"
    assert read.row("Queue, in order of submission")[1] == "<b>second</b>"
    assert read.row("nnnnnnnn")[1:] == ["10.0.0.1", "4", "4", "is there"]
    assert "first: 4 devices (4 on 10.0.0.1), from 2023-11-14 22:13:21 UTC, for 1 min 59 s" in source
    assert source.index("<li>the last line") < source.index("<li>the first line")
    assert "<b>" not in source


def test_nothing_of_the_page_comes_from_elsewhere(cluster):
    """Nor is anything within it that the browser is told to refuse: styles and scripts are files."""
    page, _ = cluster
    status, source, headers = page.ask("/")
    read = Read(source)
    assert status == 200
    assert "default-src 'none'" in headers["content-security-policy"]
    loaded = {name for name in read.values("href") + read.values("src") if name}
    assert loaded == {"/static/icon.svg", "/cluster.css", "/static/cluster.js"}
    assert "style" not in read.tags
    assert read.values("style") == []
    for name in loaded:
        assert page.ask(name)[0] == 200
    assert page.ask("/cluster.css")[2].get_content_type() == "text/css"


def test_programs_get_what_the_scheduler_says(cluster):
    """As `evenpace cluster status --json` prints it, and nobody changes anything."""
    page, scheduler = cluster
    assert page.get("/api/status") == scheduler.write()
    assert page.get("/healthz") == {"status": "ok", "scheduler": "ok", "error": ""}
    assert page.ask("/api/status", headers={"Host": "elsewhere"})[0] == 421
    assert (
        page.ask("/api/status", "POST", "{}", {"Content-Type": "application/json", "X-Evenpace": "1"})[0]
        == 405
    )


def test_viewers_get_the_parts_that_change(cluster):
    """And no others."""
    page, scheduler = cluster
    with page.events() as events:
        assert set(first_events(events)) == PARTS
        scheduler.write(policy="tiresias")
        assert set(until(events, "summary", "tiresias")) == {"summary"}
        scheduler.set("first", "ended", 0, "", how="done")
        scheduler.set("<i>second</i>", "waiting", 0, "submitted", place=2)
        scheduler.write()
        jobs = until(events, "jobs", "<td>done</td>")["jobs"]
        assert "&lt;i&gt;second&lt;/i&gt;" in jobs
        assert "<i>" not in jobs


def test_the_picture_is_drawn_when_it_looks_different(cluster):
    """A part of a second of some minutes does not show, whatever has happened in it; a longer time does."""
    page, scheduler = cluster
    with page.events() as events:
        first = first_events(events)["picture"]
        assert "first: 4 devices" in first
        scheduler.set("first", "running", 2, "decided by priority")
        scheduler.set("<b>second</b>", "running", 2, "decided by priority")
        scheduler.write(now=BEGAN + 120.2)
        assert "picture" not in until(events, "jobs", "2 on 10.0.0.1")
        assert scheduler.times_asked("record") == 1
        scheduler.write(now=BEGAN + 130)
        picture = until(events, "picture", "first: 2 devices")["picture"]
        assert "&lt;b&gt;second&lt;/b&gt;: 2 devices (2 on 10.0.0.1)" in picture
        assert scheduler.times_asked("record") == 2


def test_a_scheduler_that_is_away_is_told_of_until_it_is_back(cluster):
    """What was known last stays, with its time; the page goes on by itself."""
    page, scheduler = cluster
    with page.events() as events:
        assert first_events(events)["notice"] == ""
        scheduler.go()
        away = until(events, "notice", "away")["notice"]
        assert "Not live: the &lt;scheduler&gt; is away" in away
        assert "What is shown was so at 2023-11-14 22:15:20 UTC" in away
        assert page.ask("/api/status")[:2] == (503, {"error": "the <scheduler> is away"})
        assert page.get("/healthz")["scheduler"] == "unreachable"
        read = Read(page.get("/"))
        assert read.row("first")[1] == "running"
        assert "the <scheduler> is away" in read.text
        scheduler.write(policy="tiresias")
        assert until(events, "summary", "tiresias")["notice"] == ""
        scheduler.write(nodes="no list")
        assert "answers cannot be shown: TypeError" in until(events, "notice", "answers")["notice"]
        scheduler.write(policy="priority")
        assert until(events, "summary", "priority")["notice"] == ""
    assert "the <scheduler> is away" in page.log.read_text()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"trouble": "OSError('disk <full>')"}, "in trouble: OSError(&#39;disk &lt;full&gt;&#39;)"),
        ({"closing": True}, "The cluster goes down"),
    ],
)
def test_trouble_is_said(cluster, changes, words):
    """The scheduler's own, and that it ends."""
    page, scheduler = cluster
    scheduler.write(**changes)
    with page.events() as events:
        assert words in until(events, "notice", words)["notice"]


def test_a_node_that_leaves_and_none_at_all(cluster):
    """The one is marked; without any, jobs wait for one."""
    page, scheduler = cluster
    node = scheduler.write()["nodes"][0]
    scheduler.write(nodes=[node | {"leaving": True}])
    with page.events() as events:
        assert set(until(events, "nodes", "<td>is about to go</td>")) <= PARTS
        scheduler.write(nodes=[])
        changed = until(events, "nodes", "No node with CPU is there")
    assert "waits for a node with CPU" in changed["jobs"]


def test_the_scheduler_times_asked_once_for_all_viewers(cluster, wait_until):
    """Ten viewers have it asked no more often than the interval, a tenth of a second, says."""
    page, scheduler = cluster
    with contextlib.ExitStack() as viewers:
        for _ in range(10):
            assert set(first_events(viewers.enter_context(page.events()))) == PARTS
        began, before = time.monotonic(), scheduler.times_asked()
        wait_until(lambda: scheduler.times_asked() >= before + 20, "twenty questions")
        assert time.monotonic() - began > 1.5
        assert page.ask("/api/stream")[:2] == (
            503,
            {"error": "too many viewers follow this page already; try again later"},
        )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it(cluster, number):
    """Also while somebody looks."""
    page, _ = cluster
    with page.events() as events:
        assert set(first_events(events)) == PARTS
        page.popen.send_signal(number)
        assert page.popen.wait(60) == 0
        assert {name for name, _ in events} <= {"beat"}


def test_without_a_cluster_the_command_says_so_in_a_line():
    """As it does where others could reach the page without TLS."""
    pytest.importorskip("ray")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        result = invoke("cluster", "dashboard", "--http", "127.0.0.1:0", "--address", address)
        assert (result.exit_code, result.output.count("\n")) == (1, 1)
        assert f"cannot reach the Ray cluster at {address}" in result.output
        result = invoke("cluster", "dashboard", "--http", "0.0.0.0:0", "--address", address)
        assert "others could reach the page at 0.0.0.0:0 without TLS" in result.output
