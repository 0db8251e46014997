"""The demo's report: a page that loads nothing else, JSON that is read back, and a picture."""

import copy
import json
import math
import re
from pathlib import Path

import pytest

from evenpace.reports.demo import write_html, write_picture
from evenpace.reports.files import write_json
from tests.evenpace.reports.demo_reports import make_report
from tests.pages import Page

NASTY_NAME = "a<b>&\"$x_1$'"


def render(report: dict, folder: Path) -> Page:
    """Return the report's page, parsed."""
    path = folder / "report.html"
    write_html(report, path)
    return Page(path.read_text("utf-8"))


def test_the_page_states_the_result(tmp_path: Path) -> None:
    """The text has the speedup, its ideal, the parameters' difference and each run's numbers."""
    text = render(make_report(), tmp_path).text
    for number in ("3.46 times", "3.75 times", "2.1e-06", "61.3%", "3.8%", "97.2%", "cgroup v1"):
        assert number in text


def test_the_table_summarises_each_worker(tmp_path: Path) -> None:
    """A worker's row has its sizes, median times, waiting shares and speeds, even and balanced."""
    write_html(make_report(), tmp_path / "report.html")
    rows = re.findall(r"<tr>.*</tr>", (tmp_path / "report.html").read_text("utf-8"))
    row = next(row for row in rows if "worker-3" in row)
    cells = re.findall(r"<td>(.*?)</td>", row)
    # 0.1 of a core processes 80 samples/s: 128 samples take 1.6 s, 34 take 0.425 s
    assert cells[:3] == ["0.1", "128", "34"]
    assert float(cells[3]) == pytest.approx(1.6, rel=0.06)
    assert float(cells[4]) == pytest.approx(0.425, rel=0.06)
    assert cells[5] == "0.0%"
    assert float(cells[6].rstrip("%")) < 5
    assert [float(cell) for cell in cells[7:]] == pytest.approx([80, 80], abs=3)


def test_the_page_loads_nothing(tmp_path: Path) -> None:
    """The page has no script, and every reference is to an id of the page itself."""
    page = render(make_report(), tmp_path)
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert page.values("src") == []
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    targets = {value for name in ("href", "xlink:href") for value in page.values(name)}
    targets |= {
        f"#{target}" for _, value in page.attributes for target in re.findall(r"url\(#(.*?)\)", value or "")
    }
    assert targets
    assert targets <= {f"#{name}" for name in ids}
    source = (tmp_path / "report.html").read_text("utf-8")
    assert "http" not in source
    assert "@import" not in source


def test_every_figure_has_words(tmp_path: Path) -> None:
    """Each of the eight figures has its content in words, for readers who cannot see it."""
    page = render(make_report(), tmp_path)
    labels = [label for label in page.values("aria-label") if "in numbers" not in label]
    assert page.tags.count("figure") == page.values("role").count("img") == len(labels) == 8
    assert any("worker-3 34" in label for label in labels)


def test_the_page_follows_dark_mode(tmp_path: Path) -> None:
    """The figures have the text's colour, which the style sheet turns light in dark mode."""
    render(make_report(), tmp_path)
    source = (tmp_path / "report.html").read_text("utf-8")
    assert "prefers-color-scheme: dark" in source
    assert "currentColor" in source
    assert "#222222" not in source
    assert "#000000" not in source


def test_names_are_escaped(tmp_path: Path) -> None:
    """Names with HTML's special characters appear as they are, in text and figures."""
    report = make_report(first_name=NASTY_NAME)
    report["data"] = "mnist:<i>&"
    page = render(report, tmp_path)
    assert not {"b", "i"} & set(page.tags)
    assert "mnist:<i>&" in page.text
    assert page.text.count(NASTY_NAME) >= 4  # table, two legends, bars
    assert any(NASTY_NAME in label for label in page.values("aria-label"))


@pytest.mark.parametrize(("workers", "count"), [(1, 1), (1, 30), (4, 1), (7, 2), (40, 3)])
def test_any_size_of_run_is_drawn(tmp_path: Path, workers: int, count: int) -> None:
    """Page and picture are whole for one iteration, one worker, or more workers than colours."""
    report = make_report(workers, count)
    assert f"worker-{workers - 1}" in render(report, tmp_path).text
    write_picture(report, tmp_path / "report.png")
    assert (tmp_path / "report.png").stat().st_size > 10_000


@pytest.mark.filterwarnings("error")
def test_missing_measurements_are_drawn_as_gaps(tmp_path: Path) -> None:
    """Missing progress, iterations or workers, and a diverged loss, are no error."""
    report = make_report(count=3)
    even, balanced = report["runs"]["even"], report["runs"]["balanced"]
    even["progress"] = []
    even["iterations"] = []
    balanced["progress"][-1]["loss"] = math.nan
    balanced["accuracy"] = None
    del balanced["iterations"][1]["workers"]["worker-2"]
    assert "–" in render(report, tmp_path).text
    write_picture(report, tmp_path / "report.png")


def test_json_comes_back(tmp_path: Path) -> None:
    """The report is read as it was written, and is not changed by writing."""
    report = make_report()
    before = copy.deepcopy(report)
    write_json(report, tmp_path / "report.json")
    assert json.loads((tmp_path / "report.json").read_text("utf-8")) == report == before


def test_json_of_a_diverged_run_is_valid(tmp_path: Path) -> None:
    """NaN and infinity, which JSON does not have, become null."""
    report = make_report(count=1)
    report["parameters_max_abs_diff"] = math.nan
    report["runs"]["even"]["progress"][0]["loss"] = math.inf
    write_json(report, tmp_path / "report.json")
    read = json.loads((tmp_path / "report.json").read_text("utf-8"), parse_constant=pytest.fail)
    assert read["parameters_max_abs_diff"] is None
    assert read["runs"]["even"]["progress"][0]["loss"] is None
    assert "–" in render(read, tmp_path).text


def test_a_failed_write_leaves_the_old_report(tmp_path: Path, monkeypatch) -> None:
    """A file is replaced whole or not at all, and no draft stays behind."""
    path = tmp_path / "report.json"
    write_json({"old": True}, path)

    def fail(self: Path, content: bytes) -> int:
        self.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(OSError, match="No space"):
        write_json({"old": False}, path)
    assert json.loads(path.read_text("utf-8")) == {"old": True}
    assert list(tmp_path.iterdir()) == [path]


def test_the_picture_is_a_png(tmp_path: Path) -> None:
    """The README's picture is a PNG of some width."""
    write_picture(make_report(), tmp_path / "report.png")
    content = (tmp_path / "report.png").read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    assert int.from_bytes(content[16:20]) > 1000
