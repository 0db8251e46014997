"""The trial of one finding: a copy of the checkout, the change, the tests, and what they say."""

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree

import psutil

from lab.planted.config import PlantedConfig
from lab.planted.finding import NotPlantedError, Planted

_ENDING_SECONDS = 20.0  # for tests that were interrupted

Verdict = Literal["found", "not found", "not decided", "not planted"]


@dataclass(frozen=True)
class Outcome:
    """What came of a finding that was planted.

    Attributes:
        symptom: The finding's.
        verdict: Whether tests found it.
        tests: Those that failed.
        why: Why nothing was decided, or planted.
        seconds: How long it took.
    """

    symptom: str
    verdict: Verdict
    tests: Sequence[str] = ()
    why: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class _Tests:
    """A run of tests.

    Attributes:
        failed: The tests that failed.
        passed: Whether there were some, and all passed that were not skipped.
        undecided: Why they say nothing, if so.
    """

    failed: Sequence[str] = ()
    passed: bool = False
    undecided: str = ""


def plant(planted: Planted, config: PlantedConfig, stopping: threading.Event) -> Outcome:
    """Plant a finding in a copy of the checkout, and run its tests there.

    Args:
        planted: The finding.
        config: The checkout, and how its tests are run.
        stopping: Ends the tests once it is set.

    Raises:
        ValueError: The checkout is no working tree of git.
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="planted-", ignore_cleanup_errors=True) as folder:
        copy = Path(folder, "checkout")
        copy_checkout(config.checkout, copy)
        verdict, tests, why = _try_out(planted, copy, config, stopping)
    return Outcome(planted.symptom, verdict, tests, why, time.monotonic() - began)


def _try_out(
    planted: Planted, copy: Path, config: PlantedConfig, stopping: threading.Event
) -> tuple[Verdict, Sequence[str], str]:
    if config.check_first:
        run = _run_tests(planted.tests, copy, config.timeout, stopping)
        if not run.passed:
            return "not decided", run.failed, f"without it, too: {run.undecided or 'these fail'}"
    try:
        for change in planted.changes:
            change.apply(copy)
    except NotPlantedError as error:
        return "not planted", (), str(error)
    run = _run_tests(planted.tests, copy, config.timeout, stopping)
    if run.failed:
        return "found", run.failed, run.undecided
    return ("not found", (), "") if run.passed else ("not decided", (), run.undecided)


def copy_checkout(checkout: Path, target: Path) -> None:
    """Copy the files of a working tree as they are, but for those that git ignores.

    Raises:
        ValueError: It is no working tree of git.
    """
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=checkout,
        capture_output=True,
        text=True,
        check=False,
    )
    if listing.returncode:
        raise ValueError(f"checkout {checkout}: give a working tree of git ({listing.stderr.strip()})")
    for name in filter(None, listing.stdout.split("\0")):
        to = target / name
        to.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # it was removed, and git was not told
            # With its time, by which Python tells whether what it has compiled is of the same text.
            shutil.copy2(checkout / name, to, follow_symlinks=False)


def _run_tests(arguments: str, checkout: Path, timeout: float, stopping: threading.Event) -> _Tests:
    """Run tests of a checkout on its own packages, wherever those of this interpreter are."""
    report, log = checkout.with_name("report.xml"), checkout.with_name("log")
    report.unlink(missing_ok=True)
    # Before what an editable installation names, also in processes that tests start.
    path = os.pathsep.join(filter(None, (str(checkout.resolve()), os.environ.get("PYTHONPATH"))))
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--hypothesis-profile=ci"),
        *("-m", "not containers"),
        *(f"--junitxml={report}", f"--basetemp={checkout.with_name('tests')}", *shlex.split(arguments)),
    ]
    with (
        log.open("wb") as out,
        subprocess.Popen(
            command, cwd=checkout, env=inherited | {"PYTHONPATH": path}, stdout=out, stderr=subprocess.STDOUT
        ) as process,
    ):
        deadline = time.monotonic() + timeout
        while process.poll() is None and time.monotonic() < deadline and not stopping.is_set():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.2)
        if process.poll() is None:
            _end(process)
            return _Tests(undecided=f"its tests took longer than {timeout:g} s")
    if process.returncode not in (0, 1) or not report.exists():  # others are of pytest, not of the tests
        return _Tests(undecided=f"pytest: {log.read_text(errors='replace')[-1000:].strip()}")
    cases = ElementTree.parse(report).getroot().findall(".//testcase")
    failed = [
        f"{case.get('classname')}::{case.get('name')}"
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    ]
    if all(case.find("skipped") is not None for case in cases):
        return _Tests(undecided="all of its tests are skipped here")
    return _Tests(failed, passed=not failed)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Have pytest tidy up and end, and then end whatever is left of it."""
    descendants = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_ENDING_SECONDS)
    if process.poll() is None:
        descendants += psutil.Process(process.pid).children(recursive=True)
        process.kill()
    for each in descendants:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()
