"""Estimates of the gradient noise in a real training, against the truth at frozen parameters.

A network is trained by SGD in one process, on the gradients of uneven contributions. Every so many iterations
its parameters stay as they are for a moment: the gradients of all samples, and of many single ones, then give
the truth, and further batches, drawn with the same contributions, the error of each estimator.

With batch normalisation a single sample has no gradient of its own. There the truth is from parts of 1,000
samples, or a twentieth of all, whose statistics are nearly those of all. The JSON has a list of these looks::

    [{"iteration", "truth": {"sqr", "var", "scale"}, "followed": {"sqr", "var", "scale", "least", "most"},
      "estimators": as `noise` has them, "similarity": likewise}]
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Annotated, Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import nn

from evenpace.reports import style
from idl.errors import InvalidRequestError
from idl.gradient_norms import GradientNorms
from idl.noise import Noise
from idl.noise_estimate import NoiseEstimate
from idl.settings import Setting, check_settings
from lab.data import ImageSet, load
from lab.models.cifarnet import CifarNet
from lab.plots import colour, log_scale, panels, styled

Array = NDArray[np.float64]

_AT_ONCE = 1000  # samples
_PARTS = 20  # of all samples, at least: so many gradients' spread is known to a few percent
_HIDDEN = 64  # units


@dataclass(frozen=True)
class NoiseTrainingConfig:
    """The configuration of a training whose gradient noise is estimated, beside drawn gradients."""

    # The data set, as `lab.data.load` names it; None: nothing is trained.
    train: Annotated[
        str | None,
        Setting("Train on this data set, too: digits, mnist:DIR or cifar10:DIR (CifarNet).", metavar="DATA"),
    ] = None
    iterations: Annotated[int, Setting("Iterations of the training.", least=1)] = 500
    every: Annotated[int, Setting("Iterations from one look at the truth to the next.", least=1)] = 100
    samples: Annotated[int, Setting("Samples' gradients that the truth is from.", least=2)] = 1000
    looks: Annotated[
        int, Setting("Batches that are drawn at each look, for the estimators' errors.", least=2)
    ] = 100
    rate: Annotated[float, Setting("Learning rate.", above=0, below=inf)] = 0.01
    batch_norm: Annotated[
        bool, Setting("Train with batch normalisation over each worker's samples; digits or MNIST.")
    ] = False

    def __post_init__(self) -> None:
        check_settings(self)
        if self.batch_norm and (self.train or "").startswith("cifar10"):
            raise InvalidRequestError("batch-norm: only for digits and MNIST; CifarNet has none")


class Trained:
    """A network, its data, and their gradients; the seed is of first parameters and of all draws."""

    def __init__(self, config: NoiseTrainingConfig, seed: int) -> None:
        assert config.train is not None
        data = load(config.train)
        torch.manual_seed(seed)
        self._images = torch.from_numpy(data.train_images)
        self._labels = torch.from_numpy(data.train_labels)
        self._model = _model(data, config.batch_norm)
        self._parameters = list(self._model.parameters())
        self._rng = np.random.default_rng(seed)
        self._rate = config.rate
        self._batch_norm = config.batch_norm

    def draw(self, count: int) -> NDArray[np.int64]:
        """Draw samples of the training set, without putting them back: (count,) of their numbers."""
        return self._rng.choice(len(self._labels), count, replace=False)

    def gradient(self, samples: NDArray[np.int64]) -> torch.Tensor:
        """Return the gradient of the mean loss over samples, (elements,)."""
        chosen = torch.from_numpy(samples)
        loss = nn.functional.cross_entropy(self._model(self._images[chosen]), self._labels[chosen])
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, self._parameters)])

    def contributions(self, counts: Sequence[int]) -> tuple[list[float], torch.Tensor]:
        """Draw a batch of contributions; return each one's |g_i|², and the weighted mean, (elements,)."""
        drawn = np.split(self.draw(sum(counts)), np.cumsum(counts)[:-1])
        mean, norms = torch.zeros(()), []
        for count, samples in zip(counts, drawn, strict=True):
            gradient = self.gradient(samples)
            norms.append(_squares(gradient))
            mean = mean + gradient * (count / sum(counts))
        return norms, mean

    def step(self, gradient: torch.Tensor) -> None:
        """Take a step of SGD."""
        sizes = [parameter.numel() for parameter in self._parameters]
        with torch.no_grad():
            for parameter, part in zip(self._parameters, torch.split(gradient, sizes), strict=True):
                parameter.sub_(part.view_as(parameter), alpha=self._rate)

    def truth(self, samples: int) -> Noise:
        """Return the noise at the present parameters: |G|² of all samples, tr(Σ) from so many of them.

        With batch normalisation tr(Σ) is from all of them, in parts.
        """
        everything = np.arange(len(self._labels))
        parts = np.array_split(everything, max(-(-len(everything) // _AT_ONCE), _PARTS))
        true = torch.zeros((), dtype=torch.float64)
        for part in parts:
            true = true + self.gradient(part).double() * (len(part) / len(everything))
        if self._batch_norm:
            spread = sum(len(part) * _squares(self.gradient(part).double() - true) for part in parts)
            return Noise(_squares(true), spread / (len(parts) - 1))
        apart = (_squares(self.gradient(np.array([one])).double() - true) for one in self.draw(samples))
        return Noise(_squares(true), sum(apart) / samples)

    def similarity(self, batch: int, draws: int) -> float:
        """Return the mean cosine of the gradients of two halves of a batch."""
        cosines = []
        for _ in range(draws):
            a, b = (self.gradient(half) for half in np.split(self.draw(batch), 2))
            cosines.append(float(nn.functional.cosine_similarity(a, b, dim=0)))
        return float(np.mean(cosines))


def follow(trained: Trained, config: NoiseTrainingConfig, counts: Sequence[int]) -> Any:
    """Train, and yield at each look the iteration, the truth, and the noise as it was followed until then."""
    estimate = NoiseEstimate()
    for iteration in range(1, config.iterations + 1):
        norms, mean = trained.contributions(counts)
        whole = zip(counts, norms, strict=True)
        estimate = estimate.observe(GradientNorms.of(whole, _squares(mean)))
        trained.step(mean)
        if iteration % config.every == 0:
            yield iteration, trained.truth(config.samples), estimate.noise


def draw_norms(trained: Trained, counts: Sequence[int], draws: int) -> tuple[Array, Array]:
    """Return |g_i|², (draws, n), and |g|², (draws,), of batches drawn at the present parameters."""
    norms, squared = [], []
    for _ in range(draws):
        each, mean = trained.contributions(counts)
        norms.append(each)
        squared.append(_squares(mean))
    return np.array(norms), np.array(squared)


@styled
def draw(looks: Sequence[dict[str, Any]]) -> Figure:
    """Draw the noise scale as it was followed, with two standard errors, and the truth, over the iterations.

    An interval without an upper end goes to the top. A scale that is 0 or not finite leaves a gap.
    """
    iterations = [look["iteration"] for look in looks]
    truth, followed = ([_or_nan(look[name]["scale"]) for look in looks] for name in ("truth", "followed"))
    known = np.array([truth, followed])
    bottom, top = (np.nanmin(known) / 2, np.nanmax(known) * 4) if np.isfinite(known).any() else (1.0, 10.0)
    low = [max(look["followed"]["least"], bottom) for look in looks]
    high = [min(look["followed"]["most"], top) for look in looks]
    figure, (axes,) = panels(7.5, 3.4)
    label = "two standard errors each way"
    axes.fill_between(iterations, low, high, color=colour(0), alpha=0.2, linewidth=0, label=label)
    axes.plot(iterations, followed, color=colour(0), label="followed")
    axes.plot(iterations, truth, "o", color=style.INK, markersize=4.5, label="truth")
    log_scale(axes)
    axes.set_ylim(bottom, top)
    axes.set_title("Gradient noise scale during a training")
    axes.set_xlabel("iteration")
    axes.set_ylabel("noise scale (samples)")
    axes.legend(loc="lower right")
    return figure


def _model(data: ImageSet, batch_norm: bool) -> nn.Module:
    if data.name == "cifar10":
        return CifarNet(data.classes)
    pixels = int(np.prod(data.train_images.shape[1:]))
    norm = [nn.BatchNorm1d(_HIDDEN)] if batch_norm else []
    return nn.Sequential(
        nn.Flatten(), nn.Linear(pixels, _HIDDEN), *norm, nn.ReLU(), nn.Linear(_HIDDEN, data.classes)
    )


def _squares(gradient: torch.Tensor) -> float:
    return float(gradient.double().square().sum())


def _or_nan(scale: float) -> float:
    return scale if 0 < scale < np.inf else np.nan
