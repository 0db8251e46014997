"""The reports in a real browser: no error in its console, and no violation of accessibility."""

import shutil
from pathlib import Path

import pytest

from evenpace.reports.two_runs_page import write_two_runs_page
from tests.evenpace.commands import invoke
from tests.evenpace.reports.compared_runs import make_two, write_two
from tests.evenpace.reports.stored_runs import records, write_run

pytestmark = [pytest.mark.slow, pytest.mark.ci]

SCREENSHOTS = Path("runs/screenshots")
OVERLAPPED = {
    "backward_time": 0.6,
    "first_bucket_time": 0.1,
    "other_buckets_time": 0.4,
    "last_bucket_time": 0.1,
}
PATIENCE = 120_000  # ms; a browser needs much of a machine that may have other things to do


@pytest.fixture(scope="module")
def browser():
    """Chromium, where it and its driver are installed."""
    playwright = pytest.importorskip("playwright.sync_api")
    pytest.importorskip("axe_playwright_python.sync_playwright")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"], timeout=PATIENCE)
        try:
            yield started
        finally:
            started.close()


def look_at(browser, page_file, name):
    """Open a page in light and dark mode, also at a phone's width."""
    from axe_playwright_python.sync_playwright import Axe

    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    page.set_default_timeout(PATIENCE)
    said, asked = [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(page_file.resolve().as_uri())
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        found = Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
        page.screenshot(path=SCREENSHOTS / f"{name}-{scheme}.png", full_page=True)
    assert page.evaluate("[...document.querySelectorAll('figure svg')].every(s => s.clientHeight > 50)")
    page.set_viewport_size({"width": 1280, "height": 800})
    assert page.evaluate(
        "[...document.querySelectorAll('.scroll')].every(s => s.scrollWidth <= s.clientWidth)"
    )
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert said == []
    assert asked == [page_file.resolve().as_uri()]
    page.close()


@pytest.mark.parametrize(("workers", "iterations"), [(4, 300), (25, 40)])
def test_a_runs_page_is_fit_for_everybody(browser, tmp_path, workers, iterations):
    """A run's page is accessible with few workers and many, light and dark, wide and narrow."""
    said = ("worker-1 joined, for iteration 20 on",)
    write_run(tmp_path, records(workers, iterations, late=20, **OVERLAPPED), said=said)
    arguments = ["report", "digits", "--state", tmp_path, "--out", tmp_path / "page.html"]
    assert invoke(*arguments, catch_exceptions=False).exit_code == 0
    look_at(browser, tmp_path / "page.html", f"run-report-{workers}")


def test_the_page_of_two_runs_is_fit_for_everybody(browser, tmp_path):
    """The demo's page is accessible, light and dark, wide and narrow."""
    write_two_runs_page(make_two(write_two(tmp_path)), tmp_path / "two.html")
    look_at(browser, tmp_path / "two.html", "two-runs-report")
