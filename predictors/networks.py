"""Predictors that are neural networks: NumPy computes their predictions, Keras their fits."""

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from predictors.architectures import ARCHITECTURES, CENTER, SPREAD, predict
from predictors.base import Array, Fit, Models, PredictorOptions, Weights
from predictors.learner import FEWEST, Learner
from predictors.time_series import LAGS, SPEED, samples


def missing() -> str:
    """Return the name of a package that fits need and that is not installed; empty if all are."""
    for name in ("keras", "torch"):
        try:
            found = importlib.util.find_spec(name)
        except ModuleNotFoundError:  # some finders raise it in place of returning None
            found = None
        if found is None:
            return name
    return ""


@dataclass(frozen=True)
class NetworkFit:
    """A fit of one network for each worker to its samples."""

    network: str  # a name in `ARCHITECTURES`
    # The iterations to learn from, (4, workers) each; see `predictors.time_series.TimeSeries.rows`.
    rows: Sequence[Array]
    start: Weights | None  # weights to start from, (workers, ...); None: random ones
    seed: int  # seed of random weights and of the samples' order

    def run(self) -> Weights:
        """Fit; the weights of workers with too few samples are NaN.

        Raises:
            ValueError: No worker has enough samples, or no fit came out finite.
        """
        given, followed, usable = samples(np.stack(self.rows))
        enough = usable.sum(axis=0) >= FEWEST
        if not enough.any():
            raise ValueError(f"no worker has {FEWEST} samples to fit a network to")
        from predictors import keras_training  # Keras takes seconds to import

        architecture = ARCHITECTURES[self.network]
        found = keras_training.train(architecture, given, followed, usable, self.start, self.seed)
        finite = np.all(
            [np.isfinite(array.reshape(len(enough), -1)).all(axis=1) for array in found.values()], 0
        )
        if not (enough & finite).any():
            raise ValueError("no network's weights are finite")
        for array in found.values():
            array[~(enough & finite)] = np.nan
        return found


class Network(Learner):
    """A predictor with one network for each worker, all fitted together.

    Args:
        name: A name in `ARCHITECTURES`.
        options: When to fit, and on how much.
        models: Earlier models to start from; see `Learner`.

    Raises:
        ValueError: A package that fits need is not installed; or a saved model has other arrays than the
            network, a value that is not finite, or a spread that is not positive.
    """

    def __init__(self, name: str, options: PredictorOptions, models: Models) -> None:
        if lacks := missing():
            raise ValueError(
                f"predictor {name!r} needs {lacks}, which is not installed: "
                "pip install 'evenpace[manager]', or take ema"
            )
        self._architecture = ARCHITECTURES[name]
        super().__init__(name, {**self._architecture.shapes, CENTER: (3,), SPREAD: (3,)}, options, models)
        for worker, weights in models.get(name, {}).items():
            if (weights[SPREAD] <= 0).any():
                raise ValueError(f"{name} model of {worker}: spread {weights[SPREAD]} must be positive")

    def _make_fit(self, start: Weights | None) -> Fit:
        rows = self.series.rows(self.options.fit_window)
        return NetworkFit(self.name, rows, start, self.options.seed)

    def _forecast(self, weights: Weights) -> Array:
        return predict(self._architecture, weights, self.series.latest(LAGS))

    def _adapted(self, models: Weights) -> Weights:
        ratios = self._relative_speeds(models[CENTER][:, SPEED])[:, None]
        scales = np.where(np.arange(3) == SPEED, ratios, 1.0)
        return {**models, CENTER: models[CENTER] * scales, SPREAD: models[SPREAD] * scales}
