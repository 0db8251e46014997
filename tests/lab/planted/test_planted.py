"""Each finding of docs/track-record.md can be planted; `evenpace lab planted` says whether tests find it."""

import ast
import json
import shlex
import subprocess

import pytest

from lab.planted import planting
from lab.planted.finding import Change, Planted
from lab.planted.findings import PLANTED, UNPLANTED
from tests import ROOT
from tests.evenpace.commands import invoke

# Of a checkout that has a package by the name of one of ours.
PACKAGE = "NUMBER = 1  # a comment\nPAUSE = 0\n"
TESTS = """
import subprocess, sys, time
import evenpace
import pytest

def test_here():
    assert evenpace.NUMBER == 1

def test_in_another_process():
    told = subprocess.check_output([sys.executable, "-c", "import evenpace; print(evenpace.NUMBER)"], cwd="/")
    assert int(told) == 1

def test_that_waits():
    time.sleep(evenpace.PAUSE)

def test_that_is_red():
    raise AssertionError

@pytest.mark.skip
def test_that_is_skipped():
    pass
"""


def rows():
    """Return the rows of all tables, each of its cells."""
    lines = (ROOT / "docs/track-record.md").read_text().splitlines()
    table = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    return [cells for cells in table if cells[0] not in ("symptom", "---")]


def rows_of(symptom):
    """Return the rows that begin like this."""
    return [cells for cells in rows() if cells[0].startswith(symptom)]


def test_each_finding_is_planted_or_it_is_said_why_not():
    """Each row of the track record has one entry, and each entry one row."""
    entries = [*(planted.symptom for planted in PLANTED), *UNPLANTED]
    assert {entry: len(rows_of(entry)) for entry in entries} == dict.fromkeys(entries, 1)
    assert len(set(entries)) == len(entries) == len(rows()) > 60
    assert all(UNPLANTED.values())


@pytest.mark.ci
@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.symptom)
def test_a_finding_can_be_planted(planted, tmp_path):
    """Its changes fit the files, and what they leave is Python; the row names a test that is to find it."""
    for change in planted.changes:
        path = tmp_path / change.path
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_text((ROOT / change.path).read_text())
        change.apply(tmp_path)
        if path.suffix == ".py":
            ast.parse(path.read_text())
    tests = [word.partition("::")[0] for word in shlex.split(planted.tests) if word.startswith("tests/")]
    assert tests
    assert all((ROOT / test).exists() for test in tests)
    ((_, _, reproduction, _),) = rows_of(planted.symptom)
    assert any(test in reproduction for test in tests)


@pytest.fixture
def planted_in(tmp_path, monkeypatch):
    """A function that plants a change of `PACKAGE`: its verdict, which tests failed, and the exit status."""
    checkout = tmp_path / "checkout"
    for path, text in {"evenpace/__init__.py": PACKAGE, "tests/test_it.py": TESTS}.items():
        (checkout / path).parent.mkdir(parents=True)
        (checkout / path).write_text(text)
    subprocess.run(["git", "init", "--quiet", checkout], check=True)

    def plant(before, after, tests, *options):
        change = Change("evenpace/__init__.py", before, after)
        entry = Planted("a symptom", (change,), f"tests/test_it.py -k '{tests}'")
        monkeypatch.setattr(planting, "PLANTED", (entry,))
        figures = tmp_path / "new/figures.json"
        result = invoke("lab", "planted", "--checkout", checkout, "--json", figures, *options)
        assert (checkout / "evenpace/__init__.py").read_text() == PACKAGE
        (found,) = json.loads(figures.read_text())["findings"]
        assert found["verdict"] in result.output
        failed = sorted(test.partition("::test_")[2] for test in found["tests"])
        return found["verdict"], failed, result.exit_code

    return plant


@pytest.mark.ci
def test_what_is_planted_is_found_in_every_process_of_the_tests(planted_in):
    """The copy's packages count, not those that are installed; the checkout stays as it is."""
    found = planted_in("NUMBER = 1", "NUMBER = 2", "here or process or waits")
    assert found == ("found", ["here", "in_another_process"], 0)


@pytest.mark.ci
def test_what_changes_nothing_is_not_found(planted_in):
    """Tests that pass have found nothing: status 1."""
    assert planted_in("comment", "remark", "here or skipped") == ("not found", [], 1)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("before", "after", "tests", "options", "verdict"),
    [
        ("NUMBER = 3", "NUMBER = 4", "here", (), "not planted"),
        ("= ", "=  ", "here", (), "not planted"),
        ("NUMBER = 1", "NUMBER = 2", "nothing_of_the_kind", (), "not decided"),
        ("NUMBER = 1", "NUMBER = 2", "skipped", (), "not decided"),
        ("NUMBER = 1", "NUMBER = (", "here", (), "not decided"),
        ("comment", "remark", "red", ("--check-first",), "not decided"),
    ],
    ids=["text", "texts", "no-test", "skipped", "syntax", "red"],
)
def test_what_decides_nothing_does_not_count_as_found(planted_in, before, after, tests, options, verdict):
    """A text that is not there once, tests that do not run, and those that fail anyway: status 1."""
    planted, _, status = planted_in(before, after, tests, *options)
    assert (planted, status) == (verdict, 1)


@pytest.mark.ci
def test_tests_that_take_too_long_decide_nothing(planted_in):
    """They are ended after the time limit: status 1."""
    planted = planted_in("PAUSE = 0", "PAUSE = 600", "waits", "--timeout", "3")
    assert (planted[0], planted[2]) == ("not decided", 1)


@pytest.mark.ci
def test_a_finding_is_found():
    """A mend of this checkout, taken out."""
    result = invoke("lab", "planted", "--checkout", ROOT, "--only", "`StreamLoader`")
    assert result.exit_code == 0, result.output
    assert "1/1 found: A `StreamLoader` ends with" in result.output
