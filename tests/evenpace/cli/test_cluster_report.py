"""`evenpace cluster report` of a made-up record."""

import json

from tests.evenpace.commands import invoke
from tests.evenpace.reports.pages import read_page

BEGAN = 1_700_000_000.0  # 22:13:20 UTC


def job(after, name, submitted, state, devices, why, **further):
    """A line about a job, so many seconds after the record's beginning."""
    devices = {"node-1": devices} if devices else {}
    values = {"time": BEGAN + after, "job": name, "submitted": BEGAN + submitted, "state": state}
    return values | {"held": False, "devices": devices, "attempt": 1, "why": why} | further


LINES = [
    {"time": BEGAN, "nodes": {"node-1": ["10.0.0.1", 4]}},
    job(0, "first", 0, "waiting", 0, "submitted"),
    job(10, "first", 0, "starting", 4, "decided by tiresias"),
    job(20, "first", 0, "running", 4, "decided by tiresias"),
    job(60, "<b>", 60, "waiting", 0, "submitted"),
    job(70, "first", 0, "suspended", 0, "decided by tiresias"),
    job(70, "<b>", 60, "starting", 2, "decided by tiresias"),
    job(80, "<b>", 60, "running", 2, "decided by tiresias"),
    job(110, "<b>", 60, "ended", 0, "no such luck", how="failed"),
    job(110, "first", 0, "running", 4, "decided by tiresias"),
    job(130, "first", 0, "ended", 0, "", how="done"),
    {"time": BEGAN + 130, "nodes": {}},
]


def write(storage, lines):
    """Write a record where the scheduler has it."""
    file = storage / "_cluster" / "history.jsonl"
    file.parent.mkdir()
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def test_the_page_has_each_jobs_times_and_the_picture(tmp_path):
    """And the figures of all; names are text."""
    write(tmp_path, LINES)
    result = invoke("cluster", "report", "--storage", tmp_path, "--out", tmp_path / "out/page.html")
    assert result.exit_code == 0, result.output
    assert str(tmp_path / "out/page.html") in result.output
    page = read_page(tmp_path / "out/page.html")

    assert page.row("first")[1:] == [
        *(f"2023-11-14 {time} UTC" for time in ("22:13:20", "22:13:40", "22:15:30")),
        *("50 s", "2 min 10 s", "320", "1", "done", ""),
    ]
    assert page.row("<b>")[4:] == ["10 s", "50 s", "80", "0", "failed", "no such luck"]
    assert page.row("Mean completion time") == ["Mean completion time", "2 min 10 s"]
    assert page.row("Makespan")[1] == "2 min 10 s"
    assert page.row("Utilisation")[1] == "76.9%"  # 400 of 520 device-seconds
    source = (tmp_path / "out/page.html").read_text()
    assert source.count("<title>first: 4 devices (4 on 10.0.0.1)") == 2
    assert "&lt;b&gt;: 2 devices (2 on 10.0.0.1), from 2023-11-14 22:14:30 UTC, for 40 s" in source


def test_owners_are_shown_where_jobs_have_them(tmp_path):
    """To whoever reads the record; it is made from lines that have no owner, too."""
    write(tmp_path, [*LINES[:2], {**LINES[4], "owner": "<anna>"}])
    result = invoke("cluster", "report", "--storage", tmp_path, "--out", tmp_path / "page.html")
    assert result.exit_code == 0, result.output
    page = read_page(tmp_path / "page.html")
    assert [page.row(job)[1:3] for job in ("first", "<b>")] == [
        ["", "2023-11-14 22:13:20 UTC"],
        ["<anna>", "2023-11-14 22:14:20 UTC"],
    ]


def test_a_job_that_runs_is_drawn_until_now(tmp_path, monkeypatch):
    """It has no end, and what it has had so far is counted."""
    write(tmp_path, LINES[:4])
    monkeypatch.setattr("time.time", lambda: BEGAN + 1000)
    result = invoke("cluster", "report", "--storage", tmp_path, "--out", tmp_path / "page.html")
    assert result.exit_code == 0, result.output
    page = read_page(tmp_path / "page.html")
    assert page.row("first")[3:9] == ["–", "10 s", "–", "3,960", "0", "running"]
    assert "first: 4 devices (4 on 10.0.0.1), from 2023-11-14 22:13:30 UTC, for 16 min 30 s" in page.text


def test_without_a_record_its_file_is_named(tmp_path):
    """As where it is not a record."""
    result = invoke("cluster", "report", "--storage", tmp_path)
    file = tmp_path / "_cluster" / "history.jsonl"
    assert result.exit_code != 0
    assert f"{file}: there is no record" in result.output
    write(tmp_path, [{"time": BEGAN}])
    result = invoke("cluster", "report", "--storage", tmp_path)
    assert f"{file}: line 1 is not of the record" in result.output
