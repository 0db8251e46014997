"""`evenpace lab experiment autoscaling` and `epoch-scaling`, on made measurements and on real ones."""

import json

import pytest

from lab.experiments.autoscaling import GOODPUT, THROUGHPUT
from lab.experiments.epoch_scaling import batch_sizes
from tests import SHARED_DATA
from tests.evenpace.commands import invoke
from tests.lab.simulator.tiny import tiny_application

TRACES = SHARED_DATA / "cluster-traces" / "pollux"


def experiment(name, traces, *options):
    """The result of a command."""
    arguments = ["lab", "experiment", name, "--traces", traces, *options]
    return invoke(*arguments, columns=200)


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
