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
HEADER = "progress,iteration,metric,grad_sqr,grad_var\n"


def write(folder, model, size, scales, smallest):
    """Write a training whose noise scales are these; 0 for an epoch without."""
    path = folder / model / f"validation-{size}.csv"
    path.parent.mkdir(exist_ok=True)
    rows = [f"{k},{k},0.5,{0.01 if scale else 0.0},{0.01 * (scale or 1) / smallest}" for k, scale in scales]
    path.write_text(HEADER + "\n".join(rows) + "\n")


experiment = partial(invoke, "lab", "experiment", "forecast", "--data", columns=200)


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """What the command prints of a growing and a short model's noise, its figures, and its plot."""
    folder = tmp_path_factory.mktemp("traces")
    for size in (32, 64):
        write(folder, "growing", size, enumerate(size * 1.1 ** np.arange(14)), 32)
    write(folder, "short", 8, enumerate([5.0, 6.0]), 8)
    out, plot = folder / "out.json", folder / "out.png"
    result = experiment(folder, "--horizons", "3,1", "--every", 3, "--json", out, "--plot", plot)
    assert result.exit_code == 0, result.output
    return result.output, json.loads(out.read_text()), plot


@pytest.mark.ci
def test_growth_is_forecast_better_than_by_the_last_value(shown):
    """The last value's error is that of the growth; each model's is less, further ahead too."""
    (model,) = shown[1]["models"]
    assert (model["model"], model["trainings"]) == ("growing", 2)
    for one, growth in zip(model["horizons"], (1.1, 1.1**3), strict=True):
        last = one["errors"]["last"]
        assert (last["mean"], last["median"]) == pytest.approx((1 - 1 / growth,) * 2)
        assert all(one["errors"][name]["mean"] < 0.8 * last["mean"] for name in FORECASTERS if name != "last")


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
