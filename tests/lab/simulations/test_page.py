"""The page of simulations: figures, jobs and devices of each policy and workload."""

from dataclasses import replace

import pytest

from tests.evenpace.reports.pages import read_page
from tests.lab.simulations.simulated import ARRIVALS, CLUSTER, write_page

NASTY_NAME = "a<b>&\"$x_1$'"
THREE = ("tiresias", "optimus", "pollux")


@pytest.mark.ci
@pytest.mark.parametrize("policies", [("pollux",), THREE], ids=len)
def test_the_page_sets_policies_beside_each_other(tmp_path, policies):
    """The table of figures has a column for each policy, one or several."""
    outcomes = write_page(tmp_path / "page.html", policies)
    page = read_page(tmp_path / "page.html")

    assert page.row("figure") == ["figure", *policies]
    means = [f"{outcomes[policy].figures['mean_completion_s']:,.1f}" for policy in policies]
    assert page.row("mean completion time (s)")[1:] == means
    worst = [f"{outcomes[policy].figures['worst_rho']:.2f}" for policy in policies]
    assert page.row("ρ, worst")[1:] == worst


@pytest.mark.ci
def test_published_means_are_shown_where_there_are_any(tmp_path):
    """A row of unknown numbers would say nothing."""
    label = "mean completion time, published (s)"
    write_page(tmp_path / "known.html", ["tiresias"], published=321.5)
    write_page(tmp_path / "unknown.html", ["tiresias"])

    assert read_page(tmp_path / "known.html").row(label) == [label, "321.5"]
    assert label not in read_page(tmp_path / "unknown.html").text


@pytest.mark.ci
def test_the_best_policy_is_in_the_headline(tmp_path):
    """It is the one with the least mean completion time; the others are told as multiples."""
    outcomes = write_page(tmp_path / "page.html", THREE)
    means = {policy: its.figures["mean_completion_s"] for policy, its in outcomes.items()}
    best, *_, worst = sorted(means, key=means.__getitem__)
    text = read_page(tmp_path / "page.html").text

    assert f"{best}: a job takes" in text
    assert f"Under {worst} it takes {means[worst] / means[best]:.2f} times as long" in text


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


def test_each_time_on_devices_is_a_bar_with_a_title(tmp_path):
    """A pointer over it shows job, devices, batch and times; a batch of 5 is rounded up to 3 a device."""
    outcomes = write_page(tmp_path / "page.html", ["tiresias"])
    page = read_page(tmp_path / "page.html")
    lives = outcomes["tiresias"].lives

    assert page.tags.count("title") == 1 + sum(len(life.spans) for life in lives)
    assert "job-1: 2 devices on 1 node, batch 6, from 1 min to" in page.text


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


@pytest.mark.ci
def test_several_workloads_have_a_section_each_and_a_mean(tmp_path):
    """Sections can be reached from the top of the page, where the means are."""
    write_page(tmp_path / "page.html", THREE, workloads=["mine/v.csv", "mine/w.csv"])
    page = read_page(tmp_path / "page.html")

    assert "Mean of 2 workloads" in page.text
    assert page.text.count("12 jobs") == 2
    assert {"#workload-0", "#workload-1"} <= set(page.values("href"))


def test_a_job_that_loses_nothing_has_waited_until_its_round(tmp_path):
    """The first job is submitted at 0 s and starts in the round of 60 s."""
    write_page(tmp_path / "page.html", ["tiresias"])
    row = read_page(tmp_path / "page.html").row("job-0")

    assert row[2:4] == ["0 s", "1 min"]


@pytest.mark.ci
def test_the_charts_are_told_in_words(tmp_path):
    """Each figure has a text for those who cannot see it, with the numbers that it shows."""
    outcomes = write_page(tmp_path / "page.html", THREE)
    told = " ".join(filter(None, read_page(tmp_path / "page.html").values("aria-label")))

    for policy, its in outcomes.items():
        assert f"Job on each device against time under {policy}" in told
        assert f"of {CLUSTER.devices}; {its.figures['utilisation']:.0%} over all" in told


@pytest.mark.ci
def test_a_page_is_the_same_each_time(tmp_path):
    """Nothing of the time or of an order of hashes is in it."""
    for name in ("one.html", "two.html"):
        write_page(tmp_path / name, THREE)
    assert (tmp_path / "one.html").read_bytes() == (tmp_path / "two.html").read_bytes()
