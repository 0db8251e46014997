"""The page of simulations: figures, jobs and devices of each policy and workload."""

from dataclasses import replace

import pytest

from tests.evenpace.reports.pages import read_page
from tests.lab.simulations.simulated import ARRIVALS, write_page

NASTY_NAME = "a<b>&\"$x_1$'"
THREE = ("tiresias", "optimus", "pollux")


@pytest.mark.ci
def test_each_job_has_a_row_for_each_policy(tmp_path):
    """The row has the job's life: model, devices, batches, restarts and fairness."""
    outcomes = write_page(tmp_path / "page.html", THREE)
    page = read_page(tmp_path / "page.html")

    for number, arrival in enumerate(ARRIVALS):
        rows = [row for row in page.rows if row and row[0] == arrival.name]
        assert len(rows) == len(THREE)
        for row, its in zip(rows, outcomes.values(), strict=True):
            life = its.lives[number]
            assert row[1] == "tiny"
            assert int(row[5]) == max(sum(count for _, count in span.placement) for span in life.spans)
            assert [row[7], row[8]] == [str(life.batches[0][1]), str(life.batches[-1][1])]
            assert row[9:] == [str(life.restarts), f"{its.rhos[number]:.2f}"]


@pytest.mark.ci
def test_names_are_escaped(tmp_path):
    """A name is text, whatever characters it has: a job's, a model's, a workload's."""
    arrivals = [replace(ARRIVALS[0], name=NASTY_NAME, application=NASTY_NAME), *ARRIVALS[1:]]
    write_page(tmp_path / "page.html", THREE, arrivals, workloads=[f"{NASTY_NAME}/w.csv"])
    page = read_page(tmp_path / "page.html")

    assert page.row(NASTY_NAME)[:2] == [NASTY_NAME, NASTY_NAME]
    assert f"{NASTY_NAME}: 1 device on 1 node" in page.text
    assert f"{NASTY_NAME}/w: 12 jobs" in page.text
    assert NASTY_NAME not in (tmp_path / "page.html").read_text()
