"""Each finding of docs/track-record.md is found by tests once its mend is taken out.

`findings.toml` has for each row of the tables there how it begins, changes that bring the finding back, and
arguments of pytest for tests of which at least one must fail then; or why it cannot be planted. Each is
planted in a copy of the checkout: `pytest -m release tests/planted -k TEXT`, with a part of its row.
"""

import ast
import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import psutil
import pytest

from tests import ROOT

FINDINGS = tomllib.loads(Path(__file__).with_name("findings.toml").read_text())
PLANTED = FINDINGS["planted"]
SECONDS = 600.0  # for the tests of one finding
ENDING_SECONDS = 20.0  # for tests that were interrupted
WITH_EACH_CHANGE = "A `StreamLoader` ends with"  # the row that is planted by CI, as its tests are short


def apply(change, checkout):
    """Change a file of a checkout; the text that goes must be in it exactly once."""
    file = checkout / change["path"]
    text, time = file.read_text(), file.stat().st_mtime
    assert text.count(change["before"]) == 1, change
    file.write_text(text.replace(change["before"], change["after"]))
    # Where a text of the same length was compiled in the same second, Python takes it for the same text.
    os.utime(file, (time + 1, time + 1))


def copy_checkout(checkout, target):
    """Copy the files of a working tree as they are, but for those that git ignores."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=checkout,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listing.stdout.split("\0")):
        to = target / name
        to.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # it was removed, and git was not told
            # With its time, by which Python tells whether what it has compiled is of the same text.
            shutil.copy2(checkout / name, to, follow_symlinks=False)


def failing(checkout, tests, seconds=SECONDS):
    """Run tests of a checkout on its own packages; return the names of those that failed.

    Args:
        checkout: The checkout; files of the run are put beside it.
        tests: Arguments of pytest.
        seconds: Time limit.

    Raises:
        AssertionError: They took longer, did not run, or were all skipped.
    """
    report, log = checkout.with_name("report.xml"), checkout.with_name("log")
    # Before what an editable installation names, also in processes that tests start.
    path = os.pathsep.join(filter(None, (str(checkout.resolve()), os.environ.get("PYTHONPATH"))))
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--hypothesis-profile=ci"),
        *("-m", "not containers", f"--junitxml={report}", f"--basetemp={checkout.with_name('tests')}"),
        *shlex.split(tests),
    ]
    with (
        log.open("wb") as out,
        subprocess.Popen(
            command, cwd=checkout, env=inherited | {"PYTHONPATH": path}, stdout=out, stderr=subprocess.STDOUT
        ) as process,
    ):
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            pytest.fail(f"tests took longer than {seconds:g} s")
        finally:
            if process.poll() is None:
                end(process)
    assert process.returncode in (0, 1), log.read_text(errors="replace")[-1000:]  # others are of pytest
    cases = ElementTree.parse(report).getroot().findall(".//testcase")
    assert not all(case.find("skipped") is not None for case in cases), "all tests are skipped here"
    return [
        case.get("name")
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    ]


def end(process):
    """Have pytest tidy up and end, and then end whatever is left of it."""
    descendants = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(ENDING_SECONDS)
    if process.poll() is None:
        descendants += psutil.Process(process.pid).children(recursive=True)
        process.kill()
    for each in descendants:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()


# -- the findings


def rows():
    """Return the rows of all tables of the track record, each of its cells."""
    lines = (ROOT / "docs/track-record.md").read_text().splitlines()
    table = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    return [cells for cells in table if cells[0] not in ("symptom", "---")]


def rows_of(beginning):
    """Return the rows that begin like this."""
    return [cells for cells in rows() if cells[0].startswith(beginning)]


def test_each_finding_is_planted_or_it_is_said_why_not():
    """Each row of the track record has one entry, and each entry one row."""
    entries = [entry["row"] for entry in (*PLANTED, *FINDINGS["unplanted"])]
    assert {entry: len(rows_of(entry)) for entry in entries} == dict.fromkeys(entries, 1)
    assert len(set(entries)) == len(entries) == len(rows()) > 60
    assert all(entry["why"] for entry in FINDINGS["unplanted"])


@pytest.mark.parametrize("finding", PLANTED, ids=lambda finding: finding["row"])
def test_a_finding_can_be_planted(finding, tmp_path):
    """Its changes fit the files, and what they leave is Python; the row names a test that is to find it."""
    for change in finding["changes"]:
        path = tmp_path / change["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_text((ROOT / change["path"]).read_text())
        apply(change, tmp_path)
        if path.suffix == ".py":
            ast.parse(path.read_text())
    tests = [word.partition("::")[0] for word in shlex.split(finding["tests"]) if word.startswith("tests/")]
    assert tests
    assert all((ROOT / test).exists() for test in tests)
    ((_, _, reproduction, _),) = rows_of(finding["row"])
    assert any(test in reproduction for test in tests)


@pytest.mark.parametrize(
    "finding",
    [
        pytest.param(
            finding,
            id=finding["row"],
            marks=pytest.mark.ci if finding["row"].startswith(WITH_EACH_CHANGE) else pytest.mark.release,
        )
        for finding in PLANTED
    ],
)
def test_a_finding_is_found(finding, tmp_path):
    """A mend of this checkout, taken out."""
    checkout = tmp_path / "checkout"
    copy_checkout(ROOT, checkout)
    for change in finding["changes"]:
        apply(change, checkout)
    assert failing(checkout, finding["tests"])


# -- how they are planted

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

@pytest.mark.skip
def test_that_is_skipped():
    pass
"""


@pytest.fixture
def checkout(tmp_path):
    """A checkout that has a package by the name of one of ours, and tests."""
    original, copy = tmp_path / "original", tmp_path / "copy" / "checkout"
    package = "NUMBER = 1  # a comment\nPAUSE = 0\n"
    for path, text in {"evenpace/__init__.py": package, "tests/test_it.py": TESTS}.items():
        (original / path).parent.mkdir(parents=True)
        (original / path).write_text(text)
    subprocess.run(["git", "init", "--quiet", original], check=True)
    copy_checkout(original, copy)
    return copy


def change(before, after):
    """Return a change of that package."""
    return {"path": "evenpace/__init__.py", "before": before, "after": after}


@pytest.mark.ci
def test_what_is_planted_counts_in_every_process_of_the_tests(checkout):
    """The copy's packages are used, not those that are installed; without a change, nothing fails."""
    chosen = "tests/test_it.py -k 'here or process or waits or skipped'"
    assert failing(checkout, chosen) == []
    apply(change("NUMBER = 1", "NUMBER = 2"), checkout)
    assert sorted(failing(checkout, chosen)) == ["test_here", "test_in_another_process"]


@pytest.mark.ci
@pytest.mark.parametrize(
    ("after", "tests", "why"),
    [
        ("NUMBER = 2", "nothing_of_the_kind", "4 deselected"),
        ("NUMBER = 2", "skipped", "all tests are skipped here"),
        ("NUMBER = (", "here", "SyntaxError"),
    ],
)
def test_tests_that_do_not_run_have_found_nothing(checkout, after, tests, why):
    """There are none, they are skipped, or what was planted is no Python."""
    apply(change("NUMBER = 1", after), checkout)
    with pytest.raises(AssertionError, match=why):
        failing(checkout, f"tests/test_it.py -k {tests}")
