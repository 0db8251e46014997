"""Estimates of the gradient noise from uneven batches, ours and Cannikin's.

Gradients are drawn, with a noise that is known: contribution i is the true gradient G plus normal noise of
covariance σ²I/b_i. The analysis of variance of `idl.gradient_norms` is compared with Cannikin's estimates:
the average of its local ones (10), and the same with Theorem 4.1's weights (11). The cosine of the
gradients of two halves of a batch, on which JABAS's batch sizes rest, is measured against what follows from
the noise scale.

With --train a network is trained as well, and looked at again and again: what single samples' gradients say
is the truth there.

Example:
  evenpace lab experiment noise --batches 8,16,32,200 --draws 40000
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from idl.errors import InvalidRequestError
from idl.gradient_norms import GradientNorms
from idl.noise import Noise
from idl.settings import Setting, check_settings
from lab.experiments.noise_training import NoiseTrainingConfig, Trained, draw, draw_norms, follow
from lab.fields import numbers
from lab.plots import save
from lab.report import Columns, Format, table_of

Array = NDArray[np.float64]

OURS = "analysis of variance"
AVERAGE = "local average"
WEIGHTED = "Theorem 4.1"
_NORM = 3.0  # of the true gradient
_DEVIATION = 0.5  # σ, of each element of one sample's gradient
_AT_ONCE = 2**20  # numbers that are drawn at once


@dataclass(frozen=True, kw_only=True)
class NoiseConfig:
    """The configuration of drawn gradients, and of a training whose workers contribute the same batches."""

    batches: Annotated[tuple[int, ...], numbers("batches", "Samples of each worker.", "SIZE,...", 1)] = (
        8,
        16,
        32,
        200,
    )
    halved: Annotated[tuple[int, ...], numbers("halved", "Whole batches to halve.", "SIZE,...", 2)] = (
        16,
        64,
        256,
    )
    draws: Annotated[int, Setting("Iterations that are drawn.", least=2)] = 40_000
    dimensions: Annotated[int, Setting("Elements of a gradient.", least=1)] = 100
    seed: Annotated[int, Setting("Seed of the draws.", least=0)] = 1
    training: NoiseTrainingConfig = field(default_factory=NoiseTrainingConfig)
    plot: Annotated[Path | None, Setting("Draw a training, a PNG file.", folder=False)] = None

    def __post_init__(self) -> None:
        check_settings(self)
        least = 2 if self.training.batch_norm else 1  # samples; normalisation takes two
        if len(self.batches) < 2 or min(self.batches) < least:
            raise InvalidRequestError(
                f"batches {self.batches}: give at least two, of {least} samples or more"
            )
        if any(size % 2 or size < 2 * least for size in self.halved):
            raise InvalidRequestError(f"halved {self.halved}: give even numbers, from {2 * least}")


def run(config: NoiseConfig, console: Console) -> dict[str, Any]:
    """Run all parts, and print their tables.

    Returns, with errors and deviations relative to the truth, `{"config", "truth": {"var", "sqr"},
    "estimators": {name: {"var": {"mean", "bias", "deviation"}, "sqr": the same}}, "similarity": [{"batch",
    "measured", "expected"}], "training": {"config", "looks": as `noise_training` has them}}`.
    """
    training = config.training
    truth = true_noise(config)
    figures: dict[str, Any] = {
        "config": {name: value for name, value in vars(config).items() if name not in ("training", "plot")},
        "truth": {"var": truth.var, "sqr": truth.sqr},
        "estimators": estimators(config),
        "similarity": similarity(config),
    }
    _print_estimators(console, figures)
    _print_similarity(console, figures)
    if training.train is not None:
        figures["training"] = {"config": asdict(training), "looks": looks(config, console)}
        if config.plot is not None:
            save(draw(figures["training"]["looks"]), config.plot)
    return figures


def looks(config: NoiseConfig, console: Console) -> list[dict[str, Any]]:
    """Train, print a line for each look at the truth, and return the figures of "training"."""
    training = config.training
    trained, made = Trained(training, config.seed), []
    counts = np.array(config.batches)
    for iteration, truth, followed in follow(trained, training, config.batches):
        estimates = estimates_of(counts, *draw_norms(trained, config.batches, training.looks))
        least, most = followed.interval()
        look = {
            "iteration": iteration,
            "truth": _shown(truth),
            "followed": {**_shown(followed), "least": least, "most": most},
            "estimators": _judged(estimates, truth),
            "similarity": _similarities(
                {b: trained.similarity(b, training.looks) for b in config.halved}, truth
            ),
        }
        made.append(look)
        _print_look(console, look)
    return made


def true_noise(config: NoiseConfig) -> Noise:
    """Return the noise that gradients are drawn with."""
    return Noise(_NORM * _NORM, config.dimensions * _DEVIATION * _DEVIATION)


def estimators(config: NoiseConfig) -> dict[str, dict[str, dict[str, float]]]:
    """Return the figures "estimators" of the JSON."""
    counts = np.array(config.batches)
    drawn = [
        (np.sum(gradients**2, axis=2), np.sum((counts @ gradients / counts.sum()) ** 2, axis=1))
        for gradients in _draw(config, counts)
    ]
    norms, squared = (np.concatenate(part) for part in zip(*drawn, strict=True))
    return _judged(estimates_of(counts, norms, squared), true_noise(config))


def estimates_of(counts: NDArray[np.int64], norms: Array, squared: Array) -> dict[str, tuple[Array, Array]]:
    """Return each estimator's estimates of var and sqr, (draws,) each, by its name.

    Of samples b_i, (n,), norms |g_i|², (draws, n), and squared |g|², (draws,).
    """
    local_var, local_sqr = local_estimates(counts, norms, squared)
    var_weights, sqr_weights = theorem_weights(counts)
    ours = [
        GradientNorms.of(zip(counts.tolist(), row, strict=True), whole)
        for row, whole in zip(norms.tolist(), squared.tolist(), strict=True)
    ]
    return {
        OURS: (np.array([one.var for one in ours]), np.array([one.sqr for one in ours])),
        AVERAGE: (local_var.mean(axis=1), local_sqr.mean(axis=1)),
        WEIGHTED: (local_var @ var_weights, local_sqr @ sqr_weights),
    }


def similarity(config: NoiseConfig) -> list[dict[str, float]]:
    """Return the mean cosine of two halves' gradients, for each batch size, and the expected one."""
    measured = {}
    for batch in config.halved:
        cosines = [
            np.sum(a * b, axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
            for a, b in (np.moveaxis(g, 1, 0) for g in _draw(config, np.array([batch // 2, batch // 2])))
        ]
        measured[batch] = float(np.concatenate(cosines).mean())
    return _similarities(measured, true_noise(config))


def local_estimates(counts: NDArray[np.int64], norms: Array, squared: Array) -> tuple[Array, Array]:
    """Return each contribution's own estimates S_i and G_i, (draws, n) each: (10) of Cannikin.

    Of samples b_i, (n,), norms |g_i|², (draws, n), and squared |g|², (draws,).
    """
    total, whole = counts.sum(), squared[:, None]
    var = counts * total / (total - counts) * (norms - whole)
    sqr = (total * whole - counts * norms) / (total - counts)
    return var, sqr


def theorem_weights(counts: NDArray[np.int64]) -> tuple[Array, Array]:
    """Return the weights of S_i and G_i, (n,) each, of at least two: (11), Theorem 4.1 of Cannikin."""
    total, b = counts.sum(), counts.astype(float)
    rest = np.outer(total - b, total - b)
    var = np.outer(b, b) * (total - b[:, None] - b) / rest
    sqr = (total**2 - b[:, None] ** 2 - b**2) / (total * rest)
    np.fill_diagonal(var, total * b / (total - b))
    np.fill_diagonal(sqr, (total + 2 * b) / (total**2 - total * b))
    weights = [np.linalg.solve(matrix, np.ones(len(b))) for matrix in (var, sqr)]
    var_weights, sqr_weights = (one / one.sum() for one in weights)
    return var_weights, sqr_weights


def _draw(config: NoiseConfig, counts: NDArray[np.int64]) -> Iterator[Array]:
    """Yield contributions' gradients, (some of the draws, n, dimensions)."""
    rng = np.random.default_rng(config.seed)
    gradient = np.full(config.dimensions, _NORM / np.sqrt(config.dimensions))
    deviations = _DEVIATION / np.sqrt(counts)[:, None]
    step = max(_AT_ONCE // (len(counts) * config.dimensions), 1)
    for start in range(0, config.draws, step):
        some = min(step, config.draws - start)
        yield gradient + deviations * rng.standard_normal((some, len(counts), config.dimensions))


def _shown(noise: Noise) -> dict[str, float]:
    return {"sqr": noise.sqr, "var": noise.var, "scale": noise.scale}


def _similarities(measured: Mapping[int, float], truth: Noise) -> list[dict[str, float]]:
    return [
        {"batch": batch, "measured": cosine, "expected": truth.similarity(batch)}
        for batch, cosine in measured.items()
    ]


def _judged(
    estimates: Mapping[str, tuple[Array, Array]], truth: Noise
) -> dict[str, dict[str, dict[str, float]]]:
    """Return mean, bias and deviation of each estimator's estimates of var and sqr."""
    return {
        name: {"var": _summary(var, truth.var), "sqr": _summary(sqr, truth.sqr)}
        for name, (var, sqr) in estimates.items()
    }


def _summary(estimates: Array, truth: float) -> dict[str, float]:
    mean = float(estimates.mean())
    return {"mean": mean, "bias": mean / truth - 1, "deviation": float(estimates.std(ddof=1)) / truth}


def _print_estimators(console: Console, figures: Mapping[str, Any]) -> None:
    config, truth = figures["config"], figures["truth"]
    batches = ", ".join(map(str, config["batches"]))
    title = f"{config['draws']:,} draws, batches of {batches}; sd: relative standard deviation"
    columns: dict[str, tuple[str, Format]] = {}
    for key in ("var", "sqr"):
        columns[f"{key}.mean"] = (f"{key}, {truth[key]:g}", "{:.3f}")
        columns[f"{key}.bias"] = ("bias", "{:+.2%}")
        columns[f"{key}.deviation"] = ("sd", "{:.3f}")
    console.print(table_of(title, "estimator", columns, figures["estimators"].items(), no_wrap=True))


def _print_similarity(console: Console, figures: Mapping[str, Any]) -> None:
    columns: Columns = {"measured": ("measured", "{:.4f}"), "expected": ("1/(1 + 2φ/B)", "{:.4f}")}
    rows = ((str(row["batch"]), row) for row in figures["similarity"])
    console.print(table_of("Cosine of two halves' gradients", "batch", columns, rows))


def _print_look(console: Console, look: Mapping[str, Any]) -> None:
    truth, followed = look["truth"], look["followed"]
    deviations = ", ".join(
        f"{name} {its['var']['deviation']:.3f}" for name, its in look["estimators"].items()
    )
    cosines = ", ".join(
        f"{row['batch']}: {row['measured']:.3f} for {row['expected']:.3f}" for row in look["similarity"]
    )
    ours = look["estimators"][OURS]
    console.print(
        f"iteration {look['iteration']}: noise scale {truth['scale']:.0f} samples, followed as "
        f"{followed['scale']:.0f} ({followed['least']:.0f} to {followed['most']:.0f}); "
        f"batches at these parameters: {Noise(ours['sqr']['mean'], ours['var']['mean']).scale:.0f}, "
        f"var {ours['var']['bias']:+.0%}, sqr {ours['sqr']['bias']:+.0%}; "
        f"sd of var: {deviations}; "
        f"cosines of halves of {cosines}",
        soft_wrap=True,
    )
