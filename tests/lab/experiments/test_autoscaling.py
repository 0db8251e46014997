"""`evenpace lab experiment autoscaling` and `epoch-scaling`, on made measurements and on real ones."""

import json

import pytest

from lab.experiments.autoscaling import GOODPUT, THROUGHPUT
from lab.experiments.epoch_scaling import FORECASTS, RULES, batch_sizes
from tests import SHARED_DATA
from tests.evenpace.commands import invoke
from tests.lab.experiments.made_traces import write_model
from tests.lab.simulator.tiny import tiny_application

TRACES = SHARED_DATA / "cluster-traces" / "pollux"
SCALES = [1.0, 3.0, 2.0, 10.0, 8.0, 30.0, 25.0, 60.0, 50.0, 120.0, 100.0, 400.0]


def experiment(name, traces, *options):
    """The result of a command."""
    arguments = ["lab", "experiment", name, "--traces", traces, *options]
    return invoke(*arguments, columns=200)


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    """A model whose noise grows, unevenly, and one with too few epochs for a forecast."""
    folder = tmp_path_factory.mktemp("traces")
    write_model(folder, "growing", (64, 4096), SCALES)
    write_model(folder, "short", (64, 4096), SCALES[:4])
    return folder


@pytest.fixture(scope="module")
def rented(traces):
    """What the command prints of the growing model on up to 4 nodes, its figures and its plot."""
    out, plot = traces.parent / "autoscaling.json", traces.parent / "autoscaling.png"
    options = ["--model", "growing", "--nodes", 4, "--restart-cost", 0, "--json", out, "--plot", plot]
    result = experiment("autoscaling", traces, *options)
    assert result.exit_code == 0, result.output
    return result.output, json.loads(out.read_text()), plot


def test_by_goodput_nodes_follow_the_noise(rented):
    """Their number grows while the noise does, and never falls; by throughput it is the same all along."""
    nodes = {rule: [epoch["nodes"] for epoch in rented[1][rule]["epochs"]] for rule in (GOODPUT, THROUGHPUT)}

    assert nodes[GOODPUT] == sorted(nodes[GOODPUT])
    assert nodes[GOODPUT][0] < nodes[GOODPUT][-1] == 4
    assert nodes[THROUGHPUT] == [4] * len(SCALES)


@pytest.fixture(scope="module")
def forecast_figures(traces):
    """The figures of epoch scaling, without a cost of changes, and what is printed."""
    out = traces.parent / "epochs.json"
    result = experiment("epoch-scaling", traces, "--nodes", 4, "--restart-cost", 0, "--json", out)
    assert result.exit_code == 0, result.output
    return json.loads(out.read_text()), result.output


@pytest.mark.ci
def test_an_oracle_is_never_beaten(forecast_figures):
    """It has the least time by the one rule, and the least cost by the other, where changes cost nothing."""
    figures, _ = forecast_figures

    assert [(one["model"], one["rule"]) for one in figures["models"]] == [("growing", rule) for rule in RULES]
    for one, key in zip(figures["models"], ("hours", "device_hours"), strict=True):
        results = {name: one["results"][name][key] for name in FORECASTS}
        assert results["oracle"] == min(results.values())
    quickest = figures["models"][0]["results"]
    assert quickest["oracle"]["hours"] < quickest["last"]["hours"]


@pytest.mark.parametrize(("similarity", "size"), [(0.1, 4), (1 / 3, 12), (0.9, 16)])
def test_batch_sizes_follow_the_similarity(similarity, size):
    """The noise scale is 12: a batch of 12 has the similarity 1 / 3; sizes stay within those trained with."""
    assert batch_sizes(tiny_application(), similarity).tolist() == [size, size]


@pytest.mark.release
def test_real_jobs_gain_little_by_a_forecast(tmp_path):
    """By time and by cost, the forecast and the last size are within 5% of an oracle in every model."""
    if not TRACES.exists():
        pytest.skip("needs ../shared/data/cluster-traces")
    out = tmp_path / "out.json"
    result = experiment("epoch-scaling", TRACES, "--json", out)
    assert result.exit_code == 0, result.output
    figures = json.loads(out.read_text())

    assert {one["model"] for one in figures["models"]} == {"cifar10", "deepspeech2", "imagenet", "yolov3"}
    for one in figures["models"]:
        oracle = one["results"]["oracle"]
        for name in ("mean", "last"):
            for key in ("hours", "device_hours"):
                assert one["results"][name][key] == pytest.approx(oracle[key], rel=0.05)


def test_imagenet_is_cheaper_by_goodput(tmp_path):
    """With real step times and noise it costs 10% to 30% less, and takes at most 25% longer."""
    if not TRACES.exists():
        pytest.skip("needs ../shared/data/cluster-traces")
    out = tmp_path / "out.json"
    result = experiment("autoscaling", TRACES, "--json", out)
    assert result.exit_code == 0, result.output
    figures = json.loads(out.read_text())

    assert 0.7 < figures[GOODPUT]["device_hours"] / figures[THROUGHPUT]["device_hours"] < 0.9
    assert 1.0 < figures[GOODPUT]["hours"] / figures[THROUGHPUT]["hours"] < 1.25
    assert figures[GOODPUT]["epochs"][0]["nodes"] < figures[GOODPUT]["epochs"][-1]["nodes"]
