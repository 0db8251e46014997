"""`evenpace lab experiment forecast`: forecasts of made noise curves, and of the real ones."""

import json
from functools import partial

import numpy as np
import pytest

from lab.experiments.forecasts import ForecastConfig, errors
from predictors.batch_sizes import FORECASTERS, forecast
from tests import SHARED_DATA
from tests.evenpace.commands import invoke

TRACES = SHARED_DATA / "cluster-traces" / "pollux"
experiment = partial(invoke, "lab", "experiment", "forecast", "--data", columns=200)


def test_forecasts_do_not_see_what_they_forecast(tmp_path):
    """The error is that of a forecast from the epochs before."""
    scales = np.array([100.0, 130.0, 150.0, 190.0, 230.0, 900.0])
    (horizon,) = errors([scales], ForecastConfig(tmp_path, (2,), 1), {name: [] for name in FORECASTERS})

    assert horizon["forecasts"] == 1
    for name, its in horizon["errors"].items():
        assert its["mean"] == pytest.approx(1 - forecast(scales[:4], 2, name)[1] / 900)


@pytest.mark.release
def test_forecasts_of_real_noise(tmp_path):
    """The mean of both models has a smaller median error than the last value five epochs ahead.

    Its mean error is smaller where the noise is known well, as in cifar10's trainings.
    """
    if not TRACES.exists():
        pytest.skip("needs ../shared/data/cluster-traces")
    result = experiment(TRACES, "--every", 10, "--json", tmp_path / "out.json")
    assert result.exit_code == 0, result.output
    figures = json.loads((tmp_path / "out.json").read_text())
    ahead = {model["model"]: model["horizons"][1]["errors"] for model in figures["models"]}

    assert set(ahead) == {"cifar10", "deepspeech2", "imagenet", "ncf", "yolov3"}
    assert ahead["cifar10"]["mean"]["mean"] < 0.85 * ahead["cifar10"]["last"]["mean"]
    (overall,) = (one["errors"] for one in figures["all"] if one["epochs"] == 5)
    assert overall["mean"]["median"] < 0.95 * overall["last"]["median"]
