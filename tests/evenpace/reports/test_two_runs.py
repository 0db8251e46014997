"""The report of two runs: of any two in a manager's state, and with what the demo knows besides."""

import json
import math
import statistics
from dataclasses import replace
from functools import partial

import pytest

from evenpace.reports.two_runs import Evaluation
from evenpace.reports.two_runs_page import write_two_runs_page
from tests.evenpace.commands import invoke
from tests.evenpace.reports.compared_runs import gathered, make_two, split_evenly, write_two
from tests.evenpace.reports.pages import read_page
from tests.evenpace.reports.stored_runs import EVEN, records, write_run


def render(two, folder):
    """The page, parsed; it stands alone."""
    write_two_runs_page(two, folder / "two.html")
    page = read_page(folder / "two.html")
    # `read_page` has looked for what these refer to.
    assert any("url(#" in (value or "") for _, value in page.attributes)
    return page


report = partial(invoke, "report", catch_exceptions=False)


@pytest.mark.slow
def test_the_page_states_the_result(tmp_path):
    """How many times as fast, each worker's numbers in both runs, and what is known besides are there."""
    two = make_two(write_two(tmp_path))
    page = render(two, tmp_path)
    balanced = records(4, 40)
    medians = [
        statistics.median(record.duration for record in its)
        for its in ([split_evenly(record) for record in balanced], balanced)
    ]
    assert two.speedup == pytest.approx(medians[0] / medians[1])
    assert two.speedup > 1.5
    assert f"Balanced: an iteration is {two.speedup:.2f} times as fast." in page.text
    for said in ("digits, limited by cgroup v1", "4 workers", "3.75 times", "240 samples", "seed 3", "31.6%"):
        assert said in page.text
    known = [
        next(worker for worker in run.report.figures.workers if worker.worker == "worker-3")
        for run in two.runs
    ]
    cells = page.row("worker-3")
    assert cells[1:4] == ["0.1", str(EVEN), str(known[1].batch_size)]
    # It processes 50 samples/s.
    times = [EVEN / 50, known[1].batch_size / 50]
    assert [float(cell) for cell in cells[4:6]] == pytest.approx(times, rel=0.1)
    assert [cell.rstrip("%") for cell in cells[6:8]] == [f"{one.waiting_share * 100:.1f}" for one in known]
    assert [float(cell) for cell in cells[8:]] == pytest.approx([50, 50], rel=0.1)


@pytest.mark.ci
@pytest.mark.parametrize(("workers", "iterations"), [(1, 1), (40, 3)])
def test_any_size_of_run_is_drawn(tmp_path, workers, iterations):
    """One iteration, one worker or more workers than colours: the page is whole."""
    page = render(make_two(write_two(tmp_path, workers, iterations), workers), tmp_path)
    assert len([row for row in page.rows if row[0].startswith("worker-")]) == workers


@pytest.mark.slow
@pytest.mark.filterwarnings("error", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_missing_measurements_are_drawn_as_gaps(tmp_path):
    """No evaluation, no iteration, a diverged loss or an absent worker is no error."""
    write_run(tmp_path, [], run="aa" + 30 * "0", job="even")
    write_run(tmp_path, records(3, 40, late=20), run="bb" + 30 * "0", job="balanced")
    two = make_two(tmp_path)
    diverged = [Evaluation(0.0, 2.3, 0.1), Evaluation(1.0, math.nan, 0.1)]
    first, second = replace(two.first, evaluations=()), replace(two.second, evaluations=diverged)
    two = replace(two, first=first, second=second)
    assert two.speedup is None
    assert "–" in render(two, tmp_path).text


def test_a_run_is_compared_with_another_one_of_the_same_state(tmp_path):
    """`--against` names it; without evaluations, nothing is said of learning."""
    state = write_two(tmp_path / "state")
    page, numbers = tmp_path / "page.html", tmp_path / "numbers.json"
    result = report(*("balanced", "--against", "even", "--state", state, "--out", page, "--json", numbers))
    assert result.exit_code == 0, result.output
    text = read_page(page).text
    told = json.loads(numbers.read_text(), parse_constant=pytest.fail)
    assert [run["title"] for run in told["runs"]] == ["even", "balanced"]
    assert told["runs"][1]["figures"] == json.loads(
        json.dumps(gathered(state, "balanced").as_json()["figures"])
    )
    assert f"balanced: an iteration is {told['speedup']:.2f} times as fast." in text
    assert "Learning" not in text
    unknown = report("balanced", "--against", "none", "--state", state)
    assert unknown.exit_code == 1
    assert "no run or job 'none'" in unknown.output
