"""The report of a run: from a manager's state or a manager, while it runs and after."""

import json
import math
import re
from functools import partial
from itertools import pairwise
from xml.sax.saxutils import quoteattr

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from batchsize_manager.client import ManagerClient
from batchsize_manager.service import ManagerConfig, ManagerService
from batchsize_manager.storage.state_format import STATE_FILE
from batchsize_manager.storage.state_reader import open_state
from evenpace.overview import terms
from evenpace.overview.job_view import JobView
from evenpace.reports import run_page, run_panels
from evenpace.reports.numbers import span
from evenpace.reports.run_data import gather
from evenpace.reports.run_panels import parts_panels, prediction_panels, timeline_panels
from evenpace.reports.run_source import StoredRun
from evenpace.reports.run_totals import RunTotals
from idl.records import IterationRecord, WorkerRecord
from tests.evenpace.commands import invoke
from tests.evenpace.overview.noisy_gradients import with_norms
from tests.evenpace.overview.played import recorded
from tests.evenpace.reports.pages import read_page
from tests.evenpace.reports.stored_runs import EVEN, records, write_run
from tests.services import MemberWorker, serving

report = partial(invoke, "report", catch_exceptions=False)


@pytest.fixture
def undrawn(monkeypatch):
    """Have pages with the words of their plots, which take seconds to draw, in the plots' places."""
    monkeypatch.setattr(run_page, "svg", lambda panel: f"<svg role='img' aria-label={quoteattr(panel.alt)}/>")


def page_of(state, run="digits"):
    """Return the page of a run in a state, and its JSON."""
    out, numbers = state / "page.html", state / "numbers.json"
    result = report(run, "--state", state, "--out", out, "--json", numbers)
    assert result.exit_code == 0, result.output
    return read_page(out), json.loads(numbers.read_text(), parse_constant=pytest.fail)


@pytest.mark.slow
def test_the_page_says_what_the_state_has(tmp_path):
    """Sizes, times, members, events and facts are those of the records."""
    iterations = records(4, 80, late=20)
    said = ("worker-3 joined, for iteration 20 on",)
    page, numbers = page_of(write_run(tmp_path, iterations, said=said))
    figures = numbers["figures"]

    assert (figures["iterations"], figures["samples"]) == (80, 80 * 4 * EVEN)
    assert figures["seconds"] == pytest.approx(sum(record.duration for record in iterations))
    view = JobView(4 * EVEN)
    view.add(iterations)
    known = view.figures()
    assert figures["headline"] == known.headline
    assert known.headline in page.text
    for what, doubt in (
        ("over an even split, of late", known.speedup_doubt),
        ("against an even split, in all", known.saved_doubt),
    ):
        assert (f"{what}; {doubt}" if doubt else what) in page.text
    last = iterations[-1].parts
    for name, part in last.items():
        cells = page.row(name)
        assert cells[2:4] == [str(part.batch_size), str(EVEN)]
        times = [record.parts[name].batch_processing_time for record in iterations if name in record.workers]
        assert float(cells[4]) == pytest.approx(np.median(times), abs=0.002)
    came = next(row for row in page.rows if row[:2] == ["worker-3", "20"])
    assert came[3:6] == ["79", "the last", "60"]
    assert int(came[6].replace(",", "")) == sum(r.parts["worker-3"].batch_size for r in iterations[20:])
    for text in (*said, "proportional", "all workers left", "240 samples over all workers", "seed 3"):
        assert text in page.text
    assert numbers["facts"]["run"].startswith("f00dcafe")
    assert any(f"worker-3 {last['worker-3'].batch_size}" in label for label in labelled(page, "against"))
    for meanings in (terms.VERDICTS, terms.PARTS, terms.COLUMNS):
        for term, meaning in meanings.items():
            assert f"{term.capitalize()} {meaning}." in page.text
    assert {terms.COLUMNS["of its best"], terms.VERDICTS["chronic"]} <= set(page.values("title"))
    for worker in figures["workers"]:
        spent = ", ".join(f"{part} {span(seconds)}" for part, seconds in worker["time_parts"].items())
        assert spent in page.text


def labelled(page, words):
    """Return the texts of plots that have these words, for readers who cannot see them."""
    return [label for label in page.values("aria-label") if label and words in label]


@pytest.mark.usefixtures("undrawn")
@pytest.mark.ci
def test_the_page_has_noise_efficiency_and_goodput_of_batches_that_have_grown(tmp_path):
    """Plots have them over the iterations, and figures of late, with what they say in words."""
    grown = records(3, 300, total_of=lambda number: 3 * EVEN if number < 150 else 12 * EVEN)
    page, numbers = page_of(write_run(tmp_path, with_norms(grown, 6.0 * EVEN)))
    figures, timeline = numbers["figures"], numbers["timeline"]
    noise, goodput = figures["noise_scale"], figures["goodput"]
    efficiency = (noise + 3 * EVEN) / (noise + 12 * EVEN)
    assert figures["noise_scale_least"] < 6 * EVEN < figures["noise_scale_most"]
    assert timeline["noise_scales"][-1] == noise
    assert [figures["efficiency"], timeline["efficiencies"][-1]] == pytest.approx([efficiency] * 2)
    assert goodput == pytest.approx(figures["throughput"] * efficiency)
    for text in (
        f"Gradient noise{noise:.3g} samples{figures['noise_text']}",
        f"Efficiency{efficiency:.0%}against batches of {3 * EVEN}, of late",
        f"Goodput{goodput:.3g}samples/s",
    ):
        assert text in page.text
    for words, last in (
        ("Scale of the gradient", f"noise scale {noise:.3g} samples, batch {12 * EVEN} samples"),
        ("Samples of the whole batch, against the iteration", f"batch {12 * EVEN}."),
        (f"Progress per sample, relative to batches of {3 * EVEN} samples", ""),
        ("Samples per second times their efficiency", f"goodput {timeline['goodputs'][-1]:.3g}, throughput"),
    ):
        (label,) = labelled(page, words)
        assert last in label


@pytest.mark.usefixtures("undrawn")
@pytest.mark.ci
def test_hundreds_of_changes_of_the_batchs_size_are_not_listed(tmp_path):
    """They are counted and drawn; in their place among the events is one line, and JSON has them all."""
    sizes = [180 + 10 * step for step in range(201)]
    made = records(3, 2 * len(sizes), total_of=lambda number: sizes[number // 2])
    said = [f"the batch size goes from {before} to {after}: why-{after}" for before, after in pairwise(sizes)]
    first, last = "worker-0 joined, for iteration 0 on", "worker-3 joined, for iteration 400 on"
    page, numbers = page_of(write_run(tmp_path, made, said=(first, *said, last)))
    text = "The size of the whole batch changed 200 times, as the timeline shows; it was 2180 samples"
    assert text in page.text.replace("2,180", "2180")
    events = [row[2] for row in page.rows if len(row) == 3]
    changes = "the batch size goes from 180 to 2180 in 200 steps; the last one: why-2180"
    assert events[:4] == ["what", first, changes, last]
    assert len(page.rows) < 60
    assert labelled(page, "Samples of the whole batch, against the iteration. Last: batch 2,180.")
    assert sum("why-" in event["text"] for event in numbers["events"]) == 200
    assert numbers["resizes"] == 200


@pytest.mark.usefixtures("undrawn")
@pytest.mark.ci
@pytest.mark.parametrize("measured", [True, False])
def test_hidden_transfers_are_in_the_report_where_they_were_measured(tmp_path, measured):
    """The job's share with how much of an iteration transfers take, and each worker's with its bottleneck."""
    slow, fast = (1.0, 0.2, 1.2, 0.4), (2.0, 0.4, 1.2, 0.4)
    workers = [
        WorkerRecord(10, 2.0, 2.0, 0.0, 0.5, math.nan, 1, math.nan, *(times if measured else ()))
        for times in (slow, slow, fast)
    ]
    page, numbers = page_of(write_run(tmp_path, [recorded(number, workers) for number in range(20)]))
    text = "exposed transfers take 20% of an iteration, 50% of all transfers are hidden"
    assert (numbers["figures"]["hidden_share"] is not None) == measured
    assert (text in page.text) == ("Hidden transfers" in page.text) == measured
    assert ("bottleneck" in page.row("worker")) == measured
    if measured:
        at = page.row("worker").index("hidden")
        told = [page.row(f"worker-{i}")[at : at + 2] for i in range(3)]
        assert told == [["50%", "communication"]] * 2 + [["75%", "computing"]]


@pytest.mark.ci
@pytest.mark.parametrize(("workers", "iterations"), [(1, 1), (210, 6)])
def test_any_size_of_run_has_a_page(tmp_path, workers, iterations):
    """The page is whole and small for one worker, one iteration, or more workers than are drawn."""
    page, numbers = page_of(write_run(tmp_path, records(workers, iterations)))
    assert len(numbers["figures"]["workers"]) == workers
    assert (tmp_path / "page.html").stat().st_size < 2_000_000
    rows = [row for row in page.rows if row[0].startswith("worker-")]
    assert len(rows) == min(workers, 200)


@pytest.mark.usefixtures("undrawn")
@pytest.mark.slow
def test_names_are_escaped(tmp_path):
    """A job's name with HTML's special characters appears as it is, and the default file's name is plain."""
    job = 'a<b>&"/../x'
    write_run(tmp_path, records(2, 5), job=job, said=("<i>joined</i>",))
    page, _ = page_of(tmp_path, job)
    assert "<i>joined</i>" in page.text
    assert job in page.text


@pytest.mark.usefixtures("undrawn")
@pytest.mark.ci
def test_a_run_is_named_by_its_job_or_by_its_id(tmp_path, monkeypatch):
    """A job's name means its last run; the first characters of an id are enough if unambiguous."""
    monkeypatch.chdir(tmp_path)
    for run, job, count in (("aa11", "first", 3), ("aa22", "first", 4), ("ab33", "other", 5)):
        write_run(tmp_path, records(2, count), run=run + 28 * "0", job=job)
    for wanted, count in (("first", 4), ("aa11", 3), ("ab", 5)):
        assert page_of(tmp_path, wanted)[1]["figures"]["iterations"] == count
    ambiguous, unknown = (report(run, "--state", tmp_path) for run in ("aa", "none"))
    assert (ambiguous.exit_code, unknown.exit_code) == (1, 1)
    assert "run 'aa' is ambiguous" in ambiguous.output
    assert {"aa11", "aa22"} <= set(re.findall(r"a[ab]\d\d", ambiguous.output))
    assert "ab33" not in ambiguous.output
    assert "no run or job 'none'; there are ab33" in unknown.output
    result = report("other", "--state", tmp_path)
    assert result.exit_code == 0
    assert (tmp_path / "runs" / "reports" / "other-ab330000.html").exists()


def test_a_state_that_cannot_be_read_is_an_error(tmp_path):
    """Missing, foreign and damaged files give one line, status 1, and no page."""
    out = tmp_path / "page.html"
    damaged = write_run(tmp_path / "damaged", records(3, 400))
    content = (damaged / STATE_FILE).read_bytes()
    (damaged / STATE_FILE).write_bytes(content[:8192] + b"\xaa" * (len(content) - 8192))
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / STATE_FILE).write_text("no database at all, but a text of some length " * 100)
    for state, said in ((tmp_path / "nowhere", "there is no such file"), (damaged, "damaged"), (foreign, "")):
        refused = report("digits", "--state", state, "--out", out)
        assert (refused.exit_code, said in refused.output) == (1, True)
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("digits",), "give --state or --manager, one of them"),
        (("digits", "--state", "a", "--manager", "b:1"), "give --state or --manager, one of them"),
        (("--state", "a"), "name a run, or give --list"),
        (("digits", "--list", "--state", "a"), "name a run, or give --list"),
    ],
)
def test_wrong_usage_is_an_error(arguments, message):
    """The error says what to give."""
    result = report(*arguments)
    assert result.exit_code == 2
    assert message in result.output


@pytest.mark.usefixtures("undrawn")
@pytest.mark.ci
def test_a_manager_that_runs_is_asked(tmp_path):
    """A live manager and its state give the same numbers, while the job runs and after its end."""
    state, out = tmp_path / "state", tmp_path / "page.html"
    with serving(ManagerService(ManagerConfig(state=state))) as address:
        worker = MemberWorker(address, "live")
        for _ in range(30):
            worker.iterate()
        told = tmp_path / "live.json"
        result = report("live", "--manager", address, "--out", out, "--json", told)
        assert result.exit_code == 0, result.output
        live = json.loads(told.read_text())
        assert (live["facts"]["state"], live["facts"]["predictor"]) == ("running", "auto")
        assert (live["facts"]["sizer"], live["figures"]["iterations"]) == ("fixed", 30)
        assert "good joined, for iteration 0 on" in read_page(out).text
        with ManagerClient(address) as client:
            client.set_sizer("live", "similarity", (5, 50))
        listed = report("--list", "--manager", address).output
        assert "live" in listed
        assert live["facts"]["run"][:8] in listed
        worker.close()
        assert report(live["facts"]["run"][:6], "--manager", address, "--out", out).exit_code == 0
        assert "ended" in read_page(out).text
        assert report("none", "--manager", address, "--out", out).exit_code == 1
    page, stored = page_of(state, "live")
    assert stored["facts"]["run"] == live["facts"]["run"]
    assert stored["facts"]["ended"] is not None
    assert stored["facts"]["sizer"] == "similarity"
    assert "Sizer" in page.text
    assert stored["timeline"] | {"durations": 0} == live["timeline"] | {"durations": 0}
    assert stored["timeline"]["durations"] == pytest.approx(live["timeline"]["durations"])


def iteration_of(number, sizes):
    """Make an iteration of some workers by their batch sizes."""
    parts = {name: WorkerRecord(size, *[0.25] * 5) for name, size in sizes.items()}
    return IterationRecord.of(number, 0, sum(sizes.values()), 0.5, parts)


@given(
    st.lists(
        st.dictionaries(st.sampled_from("abcd"), st.integers(0, 50), min_size=1, max_size=4), max_size=40
    )
)
def test_every_sample_and_every_iteration_is_somebodys(batches):
    """Presences add up to the batches' samples, and have the iterations that a worker was in."""
    tally = RunTotals()
    for number, sizes in enumerate(batches):
        tally.add(iteration_of(number, sizes))
    presences = {presence.worker: presence for presence in tally.presences}
    assert sum(p.samples for p in presences.values()) == sum(sum(sizes.values()) for sizes in batches)
    assert set(presences) == {worker for sizes in batches for worker in sizes}
    for worker, presence in presences.items():
        there = [number for number, sizes in enumerate(batches) if worker in sizes]
        assert (presence.first, presence.last) == (there[0], there[-1])
        assert presence.iterations == len(there)
        assert (presence.came, presence.went) == (0.5 * there[0], 0.5 * (there[-1] + 1))
    assert [change.iteration for change in tally.changes] == sorted(c.iteration for c in tally.changes)
    assert len(tally.changes) <= tally.splits <= max(0, len(batches) - 1)


def test_an_epochs_last_batch_is_no_change_of_size():
    """A size counts from its first batch on, once a second batch has it."""
    tally = RunTotals()
    for number, size in enumerate([8, 8, 3, 8, 8, 12, 12, 5, 12]):
        tally.add(iteration_of(number, {"a": size - 1, "b": 1}))
    assert [(size.iteration, size.samples) for size in tally.sizes] == [(0, 8), (5, 12)]
    assert tally.resizes == 1


# -- charts


def gathered(tmp_path, iterations=80, late=20):
    """Return the report of a run in a state."""
    with open_state(write_run(tmp_path, records(4, iterations, late=late))) as reader:
        (run,) = reader.runs()
        return gather(StoredRun(reader, run, "a state"), 0.0, lambda done: None)


def drawn(panel):
    """Draw a panel; return its axes."""
    axes = Figure().subplots()
    panel.draw(axes)
    return axes


@pytest.mark.ci
@pytest.mark.parametrize("iterations", [80, 700])
def test_all_charts_of_a_run_have_one_range_of_iterations(tmp_path, iterations):
    """They can be read one beneath the other, also where a worker was there for a part of the run."""
    report = gathered(tmp_path, iterations)
    panels = [*timeline_panels(report), *parts_panels(report), *prediction_panels(report)]
    ranges = {drawn(panel).get_xlim() for panel in panels}
    assert len(ranges) == 1
    first, last = ranges.pop()
    assert first < 0
    assert last > iterations - 1


def test_a_workers_bars_are_its_whole_time_in_each_iteration(tmp_path):
    """The segments lie on each other, and end where processing and waiting together do."""
    report = gathered(tmp_path)
    for worker, panel in zip(run_panels.styles(report), parts_panels(report), strict=True):
        line = report.timeline.workers[worker]
        assert worker in panel.title
        areas = drawn(panel).collections
        assert len(areas) == 3
        for k in (30, 50, 60):
            segments = (line.computing_times[k], line.communication_times[k], line.waiting_times[k])
            ends = np.cumsum(segments)
            assert ends[-1] == pytest.approx(line.batch_processing_times[k] + line.waiting_times[k])
            for area, begin, end in zip(areas, [0.0, *ends], ends, strict=False):
                corners = np.concatenate([path.vertices for path in area.get_paths()])
                heights = corners[np.isclose(corners[:, 0], k + 0.5), 1]  # where the next bar begins
                assert np.isclose(heights, begin).any()
                assert np.isclose(heights, end).any()
