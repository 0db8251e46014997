"""`evenpace bench train` in small: real processes, limits, all three trainings."""

import json
import subprocess
import sys

import pytest

from evenpace.bench.train import MODES, TrainConfig, run
from rpc.errors import InvalidRequestError


def config(**changes):
    """What the command line has by default, with changes."""
    return TrainConfig.from_options(
        **{"shares": "0.8,0.4,0.2,0.1", "data": "digits", "epochs": 15, "total_batch_size": 716, "repeats": 3}
        | {"target_accuracy": 0.9, "seed": 1, "limit_kind": "auto"}
        | changes
    )


@pytest.mark.slow
@pytest.mark.alone
def test_the_trainings_differ_in_their_times_alone(tmp_path):
    """Stock DDP, all-reduce and parameter server end with the same parameters; evenpace splits unevenly."""
    path = tmp_path / "train.json"
    command = [sys.executable, "-m", "evenpace", "bench", "train", "--against", "ddp", "--json", str(path)]
    command += ["--shares", "0.8,0.2", "--epochs", "2", "--repeats", "1", "--batch-size", "120"]
    command += ["--target-accuracy", "0.2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=560)
    assert done.returncode == 0, done.stderr
    figures = json.loads(path.read_text())
    assert figures["iterations"] == 22
    assert figures["parameters_max_abs_diff"] < 1e-5
    assert set(figures["runs"]) == set(MODES)
    stock = figures["runs"]["ddp"]
    assert stock["batch_sizes"] == [60, 60]
    assert stock["speedup"] == 1
    for training in figures["runs"].values():
        assert sum(training["batch_sizes"]) == 120
        assert training["accuracy"] == pytest.approx(stock["accuracy"], abs=0.01)
        assert training["iteration_s_median"] > 0
        assert 0 < training["time_to_accuracy_s"] <= training["time_s"]
    for mode in ("all-reduce", "ps"):
        large, small = figures["runs"][mode]["batch_sizes"]
        assert large > small


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shares": "0.5"}, "at least two workers"),
        ({"shares": "0.5,0.5", "total_batch_size": 201}, "multiple of 2"),
        ({"total_batch_size": 5000}, "1437 training images"),
    ],
)
def test_wrong_options_are_named(changes, message):
    """A wrong option ends the benchmark at once and says what is allowed."""
    with pytest.raises(InvalidRequestError, match=message):
        run(config(**changes), None)
