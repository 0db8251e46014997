"""`evenpace lab experiment forecast`: forecasts of made noise curves, of the real ones, and bad folders."""

import json
from functools import partial

import numpy as np
import pytest

from lab.experiments.forecasts import ForecastConfig, errors, held, read_noise
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


def test_forecasts_are_made_where_their_truth_is_known(shown):
    """Of 14 epochs, 4, 7, 10 and 13 are known at each third; three epochs ahead is one less."""
    (model,) = shown[1]["models"]

    assert [(one["epochs"], one["forecasts"]) for one in model["horizons"]] == [(1, 2 * 4), (3, 2 * 3)]


def test_tables_and_plot_show_all_forecasters(shown):
    """There is a table for each horizon, with the time of a forecast, and a plot."""
    output, figures, plot = shown

    assert all(name in output for name in (*FORECASTERS, "1 epoch ahead", "3 epochs ahead", "growing"))
    assert "short" not in output
    assert 0 < figures["seconds"]["gaussian-process"] < 5
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_the_noise_scale_is_in_samples(tmp_path):
    """The variance is that of the smallest batch, for every training of the model."""
    write(tmp_path, "model", 100, [(0, 700.0)], 20)
    write(tmp_path, "model", 20, [(0, 500.0)], 20)

    assert [scales.tolist() for scales in read_noise(tmp_path)["model"]] == [
        [pytest.approx(500)],
        [pytest.approx(700)],
    ]


def test_an_epoch_without_noise_is_no_truth_and_keeps_the_last_value(tmp_path):
    """Such an epoch is not forecast; for those after it, the scale before it counts."""
    write(tmp_path, "model", 20, enumerate([100.0, 100.0, 100.0, 100.0, 0, 200.0]), 20)
    (scales,) = read_noise(tmp_path)["model"]
    (horizon,) = errors([scales], ForecastConfig(tmp_path, (1,), 1), {name: [] for name in FORECASTERS})

    assert held(scales).tolist() == pytest.approx([100] * 5 + [200])
    assert np.isnan(held(np.array([np.nan, 3.0]))).tolist() == [True, False]
    assert horizon["forecasts"] == 1
    assert horizon["errors"]["last"]["mean"] == pytest.approx(0.5)


def test_forecasts_do_not_see_what_they_forecast(tmp_path):
    """The error is that of a forecast from the epochs before."""
    scales = np.array([100.0, 130.0, 150.0, 190.0, 230.0, 900.0])
    (horizon,) = errors([scales], ForecastConfig(tmp_path, (2,), 1), {name: [] for name in FORECASTERS})

    assert horizon["forecasts"] == 1
    for name, its in horizon["errors"].items():
        assert its["mean"] == pytest.approx(1 - forecast(scales[:4], 2, name)[1] / 900)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("validation-x.csv", HEADER, "there is no MODEL/validation-M.csv"),
        ("validation-8.csv", HEADER + "1,1,1,1,1\n", "no training has the 5 epochs"),
        ("validation-8.csv", "progress,grad_sqr\n", "no column 'grad_var'"),
        ("validation-8.csv", HEADER + "1,1,1,-2,1\n", "line 2: grad_sqr '-2': must be a number, at least 0"),
    ],
)
def test_bad_folders_are_refused(name, text, message, tmp_path):
    """The error names the folder or the line, and what is wanted."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / name).write_text(text)
    result = experiment(tmp_path)

    assert result.exit_code == 1
    assert message in result.output


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
