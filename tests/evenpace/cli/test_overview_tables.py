"""The tables of `evenpace status` and `evenpace top`: units, alignment, and what narrow terminals show."""

import math
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from evenpace.cli.overview_tables import Shown, details, jobs_table, workers_table
from evenpace.overview.job_view import JobView
from idl.records import WorkerRecord
from tests.evenpace.overview.played import iteration, recorded

ESSENTIAL = {
    "jobs": ["job", "state", "iteration", "× even"],
    "workers": ["worker", "verdict", "samples", "time ms", "× others", "waits %"],
}


def shown(seconds, names=None, job="digits", micro_batch=None, ranks=(), communication=None):
    """Make a job whose workers take `seconds` for 640, 320, ... samples in each of its iterations."""
    names = names or [f"worker-{i}" for i in range(len(seconds))]
    sizes = [640 >> i % 4 for i in range(len(seconds))]
    view = JobView(sum(sizes))
    view.add(iteration(n, sizes, seconds, names, communication=communication) for n in range(40))
    summary = SimpleNamespace(
        job=job,
        state="running",
        reason="",
        iteration=1_234_567,
        members=len(names),
        workers=len(names),
        policy="proportional",
        predictor="blended",
        batch_size=sum(sizes),
        exchange="parameter_server",
        attempt=0,
        group_size=None,
        sizing="",
        sizer="fixed",
        spec=SimpleNamespace(micro_batch=micro_batch),
    )
    events = [SimpleNamespace(at=0.0, text=f"{names[0]} joined, for iteration 0 on, " + "and so on, " * 20)]
    figures = view.figures(dict.fromkeys(names, "working"))
    return Shown(summary, figures, 0, events, [0.1] * 40, {name: i for i, name in enumerate(ranks)}, [])


def printed(drawn, width):
    """Return what is printed on a terminal of some width, as lines."""
    console = Console(width=width, highlight=False, color_system=None)
    with console.capture() as captured:
        console.print(drawn)
    return captured.get().splitlines()


@pytest.mark.slow
@given(
    st.lists(st.floats(1e-6, 5000), min_size=1, max_size=6),
    st.integers(1, 60),
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, 0.1, 0.9]),
    st.sampled_from([80, 60]),
)
@settings(max_examples=50)
def test_narrow_terminals_have_the_essential_columns(
    seconds, length, in_micro_batches, ranked, communicating, width
):
    """No line is longer than the terminal, and only names are cut, whatever the numbers are."""
    names = [f"{i}{'n' * length}" for i in range(len(seconds))]
    transfers = communicating and [communicating * one for one in seconds]
    micro_batch = 8 if in_micro_batches else None
    job = shown(seconds, names, "j" * length, micro_batch, names if ranked else (), transfers)
    for table, essential in (
        (jobs_table([job], width), ESSENTIAL["jobs"]),
        (workers_table(job, width), ESSENTIAL["workers"]),
        (workers_table(job, width, reasons=False), ESSENTIAL["workers"]),
    ):
        lines = printed(table, width)
        assert all(len(line) <= width for line in lines)
        titles = re.split(r"  +", lines[0].strip())
        assert [title for title in titles if title in essential] == essential
        assert titles[-1] == "why" or not any("…" in line.split(maxsplit=1)[1] for line in lines)
    for line in printed(details(job, width), width):
        assert len(line) <= width
        is_event = re.match(r"\d\d:\d\d:\d\d ", line)
        assert is_event or "…" not in " ".join(line.split()[1:])


def test_numbers_are_in_the_units_of_their_titles():
    """Milliseconds, for workers of all speeds, with the digits that matter."""
    job = shown([0.0004, 0.9, 61.0, 4000.0])
    cells = [re.split(r"  +", line.strip()) for line in printed(workers_table(job, 80), 80)]
    time = cells[0].index("time ms")
    assert [row[time] for row in cells[1:]] == ["4,000,000", "61,000", "900", "0.400"]


def test_hidden_transfers_are_shown_where_anybody_has_measured_them():
    """A column of shares and one of bottlenecks, with dashes for others, and the job's line; else neither."""
    records = [
        WorkerRecord(10, 2.0, 2.0, 0.0, 0.5, math.nan, 1, *times)
        for times in ((0.6, 1.0, 0.2, 1.2, 0.4), (0.2, 2.0, 0.4, 0.6, 0.4), ())
    ]
    view = JobView(30)
    view.add(recorded(number, records[:1] * 2 + records) for number in range(20))
    job = replace(shown([1.0]), figures=view.figures())
    drawn = printed(details(job, 220), 220)
    (titles,) = [re.split(r"  +", line.strip()) for line in drawn if line.startswith("worker ")]
    rows = [re.split(r"  +", line.strip()) for line in drawn if line.startswith("worker-")]
    at = titles.index("hidden %")
    assert titles[at + 1] == "bottleneck"
    cells = {row[0]: row[at : at + 2] for row in rows}
    assert (cells["worker-0"], cells["worker-3"]) == (["57", "communication"], ["75", "computing"])
    assert cells["worker-4"] == ["-", "-"]
    assert any(line.startswith("bound by communication: exposed transfers take 15%") for line in drawn)
    without = " ".join(printed(details(shown([1.0, 2.0]), 220), 220))
    assert not re.search("hidden|bottleneck|bound by", without)
