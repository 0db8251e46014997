"""`evenpace lab bench train` in small: real processes, limits, all three trainings."""

import json
from dataclasses import replace

import numpy as np
import pytest

from lab.bench.against_ddp import MODES, TrainConfig, allowed
from tests.evenpace.commands import invoke
from tests.lab.mnist import idx, write


@pytest.fixture
def images(tmp_path):
    """A folder with 240 images of two classes: the left half is bright, or the right one."""
    random = np.random.default_rng(0)

    def drawn(samples):
        labels = (np.arange(samples) % 2).astype(np.uint8)
        pixels = random.integers(0, 128, (samples, 24, 24), np.uint8)
        for label, part in enumerate((slice(12), slice(12, 24))):
            pixels[labels == label, :, part] += 127
        return idx(pixels), idx(labels)

    names = ("images-idx3-ubyte", "labels-idx1-ubyte")
    files = {f"train-{name}": content for name, content in zip(names, drawn(240), strict=True)}
    files |= {f"t10k-{name}": content for name, content in zip(names, drawn(60), strict=True)}
    write(tmp_path / "images", files)
    return tmp_path / "images"


@pytest.mark.release
def test_the_trainings_differ_in_their_times_alone(tmp_path, images):
    """Stock DDP, all-reduce and parameter server end with the same parameters; evenpace splits unevenly."""
    path = tmp_path / "train.json"
    command = ["lab", "bench", "train", "--json", str(path), "--data", f"mnist:{images}"]
    command += ["--shares", "0.9,0.1", "--epochs", "2", "--repeats", "1", "--batch-size", "24"]
    command += ["--target-accuracy", "0.2", "--samples", "216"]
    done = invoke(*command, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    figures = json.loads(path.read_text())
    assert figures["iterations"] == 18
    assert figures["parameters_max_abs_diff"] < 1e-5
    assert set(figures["runs"]) == set(MODES)
    stock = figures["runs"]["ddp"]
    assert stock["batch_sizes"] == [12, 12]
    assert stock["speedup"] == 1
    assert 0.1 < stock["share_used"] < 0.5  # with equal parts, the fast one uses as much as the slow one
    for training in figures["runs"].values():
        assert sum(training["batch_sizes"]) == 24
        assert training["accuracy"] == pytest.approx(stock["accuracy"], abs=0.01)
        assert training["iteration_s_median"] > 0
        assert 0 < training["time_to_accuracy_s"] <= training["time_s"]
    for mode in ("all-reduce", "ps"):
        large, small = figures["runs"][mode]["batch_sizes"]
        assert large > small


def test_what_shares_and_links_allow():
    """At 20 ms of CPU and 1 ms a sample, shares of 0.8 and 0.2 have 100 samples done in 0.14 s."""
    config = TrainConfig(shares=(0.8, 0.2), total_batch_size=100)
    costs, size = ([0.07, 0.07], [0.021, 0.021]), 100_000_000
    found = allowed(config, *costs, size)
    assert found["ddp"] == pytest.approx(0.35)
    assert found["all-reduce"] == found["ps"] == pytest.approx(0.14, rel=0.02)
    found = allowed(replace(config, rate=100.0), *costs, size)
    assert found["all-reduce"] == found["ps"] == pytest.approx(1.0)
    four = replace(config, shares=(0.8, 0.2, 0.8, 0.2), rate=100.0)
    costs_of_four = (cost * 2 for cost in costs)
    assert allowed(four, *costs_of_four, size)["all-reduce"] == pytest.approx(1.5)
    found = allowed(config, [0.027, 0.052], [0.0025, 0.003], size)  # 2 ms, and 0.5 or 1 ms a sample
    assert found["ps"] == pytest.approx(0.106 / 1.8, rel=0.02)
    assert found["ddp"] == pytest.approx(0.26)
