"""The live pages in a real browser: what users see of a real run, navigation, and changes.

Screenshots of the tests are left under runs/screenshots.
"""

import contextlib
import os
import re
import shutil

import pytest

from rpc import tokens
from rpc.credentials import Credentials
from tests import ROOT
from tests.evenpace.dashboard.cluster_pages import played_cluster
from tests.evenpace.dashboard.live_pages import Uneven, managed_page, page_of
from tests.services import address_of_our_own

sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-playwright-python")
_CHROMIUM = shutil.which("chromium")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.ci,
    pytest.mark.skipif(_CHROMIUM is None, reason="needs chromium"),
]

SCREENSHOTS = ROOT / "runs" / "screenshots"
DESK, PHONE = {"width": 1280, "height": 900}, {"width": 320, "height": 640}
expect = sync_api.expect
_PATIENCE = 120_000  # milliseconds


@pytest.fixture(scope="module")
def chromium():
    """A browser, for all tests."""
    expect.set_options(timeout=_PATIENCE)
    options = ["--disable-gpu", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_CHROMIUM, args=options, timeout=_PATIENCE)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A manager with a page."""
    with managed_page(tmp_path_factory.mktemp("browser"), "--workers", "4") as page:
        yield page


@pytest.fixture(scope="module")
def run(page, wait_until):
    """A job with a straggler that goes on during the tests."""
    with Uneven(page.manager, "digits", noise_scale=300.0) as run:
        wait_until(lambda: len(run.done) > 30, "thirty iterations")
        yield run


@pytest.fixture
def opened(chromium, page, run):
    """A function that opens the job's page; all tabs are checked for errors and requests at the end."""
    contexts, wrong = [], []

    def open_(url=None, **options):
        context = chromium.new_context(**{"viewport": DESK} | options)
        contexts.append(context)
        tab = context.new_page()
        tab.set_default_timeout(_PATIENCE)
        own = url or page.url
        tab.on("pageerror", lambda error: wrong.append(str(error)))
        tab.on("console", lambda said: said.type == "error" and wrong.append(said.text))
        tab.on("request", lambda request: request.url.startswith(own) or wrong.append(request.url))
        tab.goto(own)
        expect(tab.locator(".chart canvas")).to_have_count(7)
        expect(tab.locator(".workers tbody tr")).to_have_count(4)
        return tab

    yield open_
    for context in contexts:
        context.close()
    assert [line for line in wrong if "net::ERR" not in line and "Failed to load resource" not in line] == []


@contextlib.contextmanager
def _tab(chromium):
    """An empty tab."""
    with contextlib.closing(chromium.new_context(viewport=DESK)) as context:
        tab = context.new_page()
        tab.set_default_timeout(_PATIENCE)
        yield tab


def _shot(tab, name):
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    tab.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)


def _violations(tab):
    """Return the findings of a checker of accessibility, in short."""
    found = axe.Axe().run(tab).response["violations"]
    return [(one["id"], [node["html"] for node in one["nodes"]][:3]) for one in found]


def _iteration(tab):
    text = (
        tab.locator(".figures div", has=tab.get_by_text("Iteration", exact=True))
        .locator(".note")
        .inner_text()
    )
    return int(re.search(r"([\d,]+) complete", text)[1].replace(",", ""))


def test_the_page_shows_a_run_and_follows_it(opened, wait_until):
    """A viewer sees the only job at once, and its new iterations without a reload."""
    tab = opened()
    expect(tab).to_have_title("digits – evenpace")
    expect(tab.locator(".headline")).to_contain_text("faster than even")
    expect(tab.locator(".straggler")).to_contain_text("worker-3: takes")
    expect(tab.locator(".link")).to_contain_text("live")
    slowest = tab.locator(".workers tbody tr").first
    expect(slowest).to_contain_text("worker-3")
    expect(slowest).to_contain_text("chronic")
    expect(tab.locator(".events")).to_contain_text("worker-0 joined")
    noise = tab.locator(".figures div", has_text="Gradient noise")
    expect(noise).to_contain_text(
        re.compile(r"\d samples ?a batch twice as large would do 1\.\d.* times the work")
    )
    last = tab.get_by_role("img", name=re.compile(r"^Gradient noise, .*noise scale \d+, batch 256\.$"))
    expect(last).to_have_count(1)
    for part in (".setting", ".workers"):
        expect(tab.locator(part)).not_to_contain_text(re.compile("micro-batches|at once"))
    tab.evaluate("window.mark = 1")
    first = _iteration(tab)
    chart = tab.get_by_role("img", name=re.compile("^Batch sizes, iterations"))
    drawn = chart.get_attribute("aria-label")
    wait_until(lambda: _iteration(tab) > first + 20, "twenty more iterations")
    wait_until(lambda: chart.get_attribute("aria-label") != drawn, "the chart's next points")
    assert tab.evaluate("window.mark") == 1
    _shot(tab, "job-light")


@pytest.mark.parametrize(
    ("name", "options", "schemes"),
    [
        ("desk", {"viewport": DESK}, ("light", "dark")),
        (
            "phone",
            {"viewport": PHONE, "device_scale_factor": 2, "has_touch": True, "is_mobile": True},
            ("light",),
        ),
    ],
)
def test_the_page_is_fit_for_everybody(opened, name, options, schemes):
    """No violation of accessibility, nor anything wider than the screen, whatever is open."""
    tab, wide = opened(**options), options["viewport"]["width"]

    width = "Math.max(document.documentElement.scrollWidth, document.body.scrollWidth)"

    def check(what):
        assert tab.evaluate(width) <= wide
        for scheme in schemes:
            tab.emulate_media(color_scheme=scheme)
            assert _violations(tab) == []
            _shot(tab, f"{name}-{what}-{scheme}")

    expect(tab.locator("[aria-live=polite]")).to_contain_text("even")
    assert tab.locator("[aria-live]").count() == 1
    assert tab.evaluate(width) <= wide
    tab.get_by_role("button", name="worker-3").click()
    for summary in tab.locator("summary").all():
        summary.click()
    expect(tab.locator(".worker")).to_be_visible()
    check("details")
    tab.get_by_role("button", name="Change policy").click()
    expect(tab.get_by_role("dialog")).to_be_visible()
    check("confirm")
    box = tab.get_by_role("dialog").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= wide


def test_a_workers_bar_is_its_whole_time(opened):
    """Its segments follow each other, as wide as the parts of its time in words are long."""
    bars = opened().evaluate(  # at once, since the job goes on
        """[...document.querySelectorAll(".workers span.parts")].map((bar) => [
            bar.querySelector(".hidden").textContent,
            [...bar.querySelectorAll("rect")].map((part) => [
                part.getAttribute("class"),
                Number(part.getAttribute("x")),
                Number(part.getAttribute("width")),
            ]),
        ])"""
    )
    scale, units = [], {"s": 1, "ms": 1e-3, "µs": 1e-6}
    for words, parts in bars:
        names, begins, widths = zip(*parts, strict=True)
        told = [text.split() for text in words.split(", ")]
        seconds = [float(value) * units[unit] for _, value, unit in told]
        assert names == tuple(name for name, _, _ in told) == ("computing", "communicating", "waiting")
        assert begins == pytest.approx((0, widths[0], widths[0] + widths[1]))
        assert widths == pytest.approx([sum(widths) * part / sum(seconds) for part in seconds], rel=0.03)
        scale.append(sum(widths) / sum(seconds))
    assert scale == pytest.approx([scale[0]] * 4, rel=0.05)


def test_all_charts_have_one_range_of_iterations(opened, wait_until):
    """They can be read one beneath the other, whichever range is chosen."""
    tab = opened()

    def ranges():
        return set(tab.evaluate("[...document.querySelectorAll('.plot')].map((plot) => plot.dataset.range)"))

    choice = tab.get_by_role("combobox", name="Iterations")
    choice.select_option("all")  # which is chosen at first while the job is young
    wait_until(lambda: len(ranges()) == 1 and next(iter(ranges())).startswith("0 "), "one range from 0")
    choice.select_option("the last 100")
    wait_until(lambda: len(ranges()) == 1 and not next(iter(ranges())).startswith("0 "), "the last 100")
    first, last = map(int, next(iter(ranges())).split())
    assert last - first <= 99


def test_all_by_keyboard(opened, wait_until):
    """All controls are reached and used with the keyboard; updates leave the focus where it is."""
    tab = opened()
    tab.keyboard.press("Tab")
    expect(tab.locator(".skip")).to_be_focused()
    expect(tab.locator(".skip")).to_be_in_viewport()
    tab.keyboard.press("Enter")
    reached = []
    while "Skip to the content" not in reached:  # it begins again: no trap
        assert len(reached) < 100
        tab.keyboard.press("Tab")
        reached.append(tab.evaluate("document.activeElement.innerText ?? ''").split("\n")[0])
        assert tab.evaluate(
            "document.activeElement === document.body || "
            "getComputedStyle(document.activeElement).outlineStyle !== 'none'"
        ), f"no focus to be seen on {reached[-1]}"
    assert {"Worker", "worker-3", "Change policy …", "Pause …"} <= set(reached)
    who = tab.get_by_role("button", name="worker-3")
    who.focus()
    tab.keyboard.press("Enter")
    expect(who).to_have_attribute("aria-expanded", "true")
    before = _iteration(tab)
    wait_until(lambda: _iteration(tab) > before + 10, "ten more iterations")
    expect(who).to_be_focused()
    column = tab.get_by_role("columnheader", name="Worker")
    column.get_by_role("button").focus()
    tab.keyboard.press("Enter")
    expect(tab.locator(".workers tbody tr").first).to_contain_text("worker-0")
    expect(column).to_have_attribute("aria-sort", "ascending")
    expect(column.get_by_role("button")).to_be_focused()
    pause = tab.get_by_role("button", name="Pause")
    pause.focus()
    tab.keyboard.press("Enter")
    expect(tab.get_by_role("dialog")).to_be_visible()
    tab.keyboard.press("Escape")
    expect(tab.get_by_role("dialog")).to_have_count(0)
    expect(pause).to_be_focused()


def test_the_page_reconnects_by_itself(opened, page, tmp_path, wait_until):
    """A tab whose server is away says so and keeps its figures; it goes on when it can."""
    address = str(address_of_our_own())  # the tab's attempts must not be given it while nobody is there
    with page_of(tmp_path, page.manager, "--http", address) as first:
        tab = opened(first.url)
    expect(tab.locator(".notice")).to_contain_text("server cannot be reached")
    expect(tab.locator(".link")).to_contain_text("not live")
    expect(tab.locator(".workers tbody tr")).to_have_count(4)
    before = _iteration(tab)
    _shot(tab, "not-live")
    with page_of(tmp_path, page.manager, "--http", address):
        expect(tab.locator(".notice")).to_have_count(0)
        expect(tab.locator(".link")).to_have_text(re.compile("^live"))
        wait_until(lambda: _iteration(tab) > before, "news")


def test_several_jobs_and_many_workers(chromium, tmp_path, wait_until):
    """Jobs are listed; many workers have bands, a table in parts, and single lines on demand."""
    with (
        managed_page(tmp_path) as page,
        Uneven(page.manager, "wide", [50 + 10 * number for number in range(40)], micro_batch=8) as wide,
        Uneven(page.manager, "small", (100,), transfers=False) as small,
        _tab(chromium) as tab,
    ):
        wait_until(lambda: min(len(wide.done), len(small.done)) > 10, "ten iterations")
        tab.goto(page.url)
        expect(tab.locator(".jobs li")).to_have_count(2)
        expect(tab.locator(".jobs")).to_contain_text("40 workers")
        _shot(tab, "jobs")
        assert _violations(tab) == []
        tab.get_by_role("link", name="wide").click()
        expect(tab.locator(".workers tbody tr")).to_have_count(25)
        expect(tab.locator(".pages")).to_contain_text("1–25 of 40")
        tab.get_by_role("button", name="Next").click()
        expect(tab.locator(".workers tbody tr")).to_have_count(15)
        tab.get_by_label("Name", exact=True).fill("worker-39")
        expect(tab.locator(".workers tbody tr")).to_have_count(1)
        expect(tab.locator(".setting")).to_contain_text("samples, in micro-batches of 8 ·")
        expect(tab.locator(".workers tbody")).to_contain_text(re.compile(r"[124] at once"))
        tab.get_by_role("button", name="worker-39").click()
        expect(tab.locator(".worker dl")).to_contain_text(
            re.compile(r"Micro-batches at once[124], at most 4")
        )
        sizes = tab.get_by_role("img", name=re.compile("^Batch sizes"))
        assert "worker-39" not in sizes.get_attribute("aria-label")
        tab.get_by_label("Draw it in the charts").check()
        expect(sizes).to_have_attribute("aria-label", re.compile("largest .*median .*smallest .*worker-39"))
        expect(tab.get_by_role("img", name=re.compile("^Predicted and real speed"))).to_be_visible()
        _shot(tab, "many-workers")
        assert _violations(tab) == []
        tab.go_back()
        expect(tab.locator(".jobs h1")).to_have_text("Jobs")
        tab.get_by_role("link", name="small").click()  # whose worker measures no transfers
        expect(tab.locator(".workers tbody tr")).to_have_count(1)
        expect(tab.get_by_role("columnheader", name="Hidden")).to_have_count(0)
        expect(tab.locator(".figures")).not_to_contain_text("Hidden transfers")


def test_the_sizer_is_set_and_bounded_from_the_page(chromium, tmp_path, wait_until):
    """Its sizes are drawn, and the size cannot be set by hand before the sizer is fixed again."""
    with (
        managed_page(tmp_path, "--workers", "4") as page,
        Uneven(page.manager, "sized", noise_scale=2000.0) as sized,
        _tab(chromium) as tab,
    ):
        wait_until(lambda: len(sized.done) > 60, "sixty iterations")
        tab.goto(page.url)
        drawn = tab.get_by_role("img", name=re.compile("^Whole batch|^Statistical efficiency|^Goodput"))
        expect(drawn).to_have_count(0)
        form = tab.locator("form", has=tab.get_by_role("button", name="Change sizer"))
        dialog = tab.get_by_role("dialog")
        by_hand = tab.locator("form", has=tab.get_by_role("button", name="Change batch size"))

        def change(to, said):
            form.get_by_role("button").click()
            expect(dialog).to_contain_text(to)
            dialog.get_by_role("button", name="Change sizer").click()
            expect(dialog).to_contain_text(said)
            dialog.get_by_role("button", name="Close").click()

        expect(form.get_by_label("Least")).to_have_count(0)
        form.get_by_label("Sizer").select_option("similarity")
        form.get_by_label("Least").fill("256")
        form.get_by_role("button").click()  # not sent: there is no most
        expect(dialog).to_have_count(0)
        form.get_by_label("Most").fill("1024")
        change(
            "similarity, which chooses batches of 256 to 1,024", "changed the sizer from fixed to similarity"
        )
        expect(by_hand.get_by_role("button")).to_be_disabled()
        expect(by_hand).to_contain_text("The sizer similarity chooses it")
        expect(tab.locator(".events")).to_contain_text("the batch size goes from 256 to ")
        expect(drawn).to_have_count(3)
        assert _violations(tab) == []
        _shot(tab, "sizer")
        form.get_by_label("Sizer").select_option("fixed")
        change("fixed", "Done")
        expect(by_hand.get_by_role("button")).to_be_enabled()


def test_a_pasted_token_opens_the_changes(chromium, tmp_path, wait_until):
    """A page whose manager asks for tokens is read-only until one is pasted; it stays in the tab."""
    key = tmp_path / "tokens.key"
    tokens.write_new_key(key, add=False)
    text = tokens.issue(tokens.TokenKeys(key), "mine", 0)
    with (
        managed_page(tmp_path, "--token-key", str(key), "--workers", "2") as page,
        Uneven(page.manager, "mine", (100, 50), Credentials(token_text=text)) as mine,
        _tab(chromium) as tab,
    ):
        urls = []
        tab.on("request", lambda request: urls.append(request.url))
        wait_until(lambda: len(mine.done) > 5, "five iterations")
        tab.goto(page.url)
        expect(tab.get_by_text("Changes need a token")).to_be_visible()
        expect(tab.get_by_role("button", name="Pause")).to_have_count(0)
        for given, said in ((tokens.issue(tokens.TokenKeys(key), "other", 0), "Not done"), (text, "Done")):
            tab.get_by_label("Token").fill(given)
            tab.get_by_role("button", name="Use token").click()
            tab.get_by_role("button", name="Pause").click()
            tab.get_by_role("dialog").get_by_role("button", name="Pause").click()
            expect(tab.get_by_role("dialog")).to_contain_text(said)
            tab.get_by_role("button", name="Close").click()
        expect(tab.locator(".hero .badge")).to_contain_text("paused")
        tab.reload()
        tab.get_by_role("button", name="Resume").click()
        tab.get_by_role("dialog").get_by_role("button", name="Resume").click()
        expect(tab.locator(".hero .badge")).to_contain_text("running")
        tab.get_by_role("button", name="Close").click()
        tab.get_by_role("button", name="Forget it").click()
        expect(tab.get_by_role("button", name="Pause")).to_have_count(0)
        assert urls
        assert not any("evenpace1." in url for url in urls)


def test_the_page_of_a_shared_cluster_is_fit_for_everybody_and_follows_it(chromium, tmp_path):
    """In light and dark, on a desk and a phone; news take neither the focus nor what was scrolled to."""
    with played_cluster(tmp_path) as (page, scheduler), _tab(chromium) as tab:
        wrong = []
        tab.on("pageerror", lambda error: wrong.append(str(error)))
        tab.on("console", lambda said: said.type == "error" and wrong.append(said.text))
        tab.on("request", lambda request: request.url.startswith(page.url) or wrong.append(request.url))
        for scheme in ("light", "dark"):
            for view in (DESK, PHONE):
                tab.set_viewport_size(view)
                tab.emulate_media(color_scheme=scheme)
                tab.goto(page.url)
                expect(tab.get_by_role("rowheader", name="<b>second</b>")).to_be_visible()
                assert _violations(tab) == []
                assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
                _shot(tab, f"cluster-{scheme}-{view['width']}")
        jobs = tab.get_by_role("region", name="Each job")
        jobs.focus()
        jobs.evaluate("its => { its.scrollLeft = 70 }")
        scheduler.set("first", "ended", 0, "", how="done")
        scheduler.write()
        expect(jobs.get_by_role("cell", name="done")).to_have_count(1)
        expect(jobs).to_be_focused()
        assert jobs.evaluate("its => its.scrollLeft") == 70
        scheduler.go()
        expect(tab.get_by_role("status").filter(has_text="the <scheduler> is away")).to_be_visible()
        scheduler.write()
        expect(tab.get_by_text("is away")).to_have_count(0)
        page.popen.kill()
        expect(tab.get_by_role("status").filter(has_text="does not answer")).to_be_visible()
    assert [line for line in wrong if "net::ERR" not in line] == []
