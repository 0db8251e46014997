"""Estimates of the gradient noise from uneven batches, ours and Cannikin's.

Gradients are drawn, with a noise that is known: contribution i is the true gradient G plus normal noise of
covariance σ²I/b_i. The analysis of variance of `idl.gradient_norms` is compared with Cannikin's estimates:
the average of its local ones (10), and the same with Theorem 4.1's weights (11). The covariance that these
rest on is measured, Cov(|g|², |g_i|²), for which Lemma B.5 has 4b_i|G|²tr(Σ)/B², and a first-order expansion
4GᵀΣG/B; and the cosine of the gradients of two halves of a batch, on which JABAS's batch sizes rest, against
what follows from the noise scale.

With --train a network is trained as well, and looked at again and again: what single samples' gradients say
is the truth there.

Example:
  evenpace lab experiment noise --batches 8,16,32,200 --draws 40000
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from math import inf
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
from lab.fields import whole_numbers
from lab.plots import save
from lab.report import Columns, Format, table_of

Array = NDArray[np.float64]

OURS = "analysis of variance"
AVERAGE = "local average"
WEIGHTED = "Theorem 4.1"
_AT_ONCE = 2**20  # numbers that are drawn at once


@dataclass(frozen=True, kw_only=True)
class NoiseConfig:
    """The configuration of drawn gradients, and of a training whose workers contribute the same batches."""

    # Samples of each contribution to an iteration.
    batches: Annotated[
        tuple[int, ...],
        Setting(
            "Samples of each worker.", metavar="SIZE,...", read=partial(whole_numbers, "batches", least=1)
        ),
    ] = (8, 16, 32, 200)
    # Whole batches of which two halves are compared, in samples.
    halved: Annotated[
        tuple[int, ...],
        Setting(
            "Whole batches to halve.", metavar="SIZE,...", read=partial(whole_numbers, "halved", least=2)
        ),
    ] = (16, 64, 256)
    draws: Annotated[int, Setting("Iterations that are drawn.", least=2)] = 40_000
    dimensions: Annotated[int, Setting("Elements of a gradient.", least=1)] = 100
    # |G|, of the true gradient.
    norm: Annotated[float, Setting("Norm of the true gradient.", above=0, below=inf)] = 3.0
    # Σ, of each element of one sample's gradient.
    deviation: Annotated[
        float, Setting("Deviation of each element of a sample's gradient.", above=0, below=inf)
    ] = 0.5
    seed: Annotated[int, Setting("Seed of the draws.", least=0)] = 1
    training: NoiseTrainingConfig = field(default_factory=NoiseTrainingConfig)
    plot: Annotated[Path | None, Setting("Draw a training, a PNG file.", folder=False)] = None

    def __post_init__(self) -> None:
        check_settings(self)
        if len(self.batches) < 2 or min(self.batches) < 1:
            raise InvalidRequestError(f"batches {self.batches}: give at least two, of a sample or more")
        if any(size < 2 or size % 2 for size in self.halved):
            raise InvalidRequestError(f"halved {self.halved}: give even numbers of samples, from 2")
        if self.training.batch_norm:
            if min(self.batches) < 2:
                raise InvalidRequestError(
                    f"batches {self.batches}: batch normalisation takes two samples or more"
                )
            if min(self.halved) < 4:
                raise InvalidRequestError(
                    f"halved {self.halved}: batch normalisation takes halves of two or more"
                )


def run(config: NoiseConfig, console: Console) -> dict[str, Any]:
    """Run all parts, and print their tables.

    Returns, with errors and deviations relative to the truth, `{"config", "truth": {"var", "sqr"},
    "estimators": {name: {"var": {"mean", "bias", "deviation"}, "sqr": the same}}, "covariance": [{"samples",
    "measured", "expected", "lemma"}], "similarity": [{"batch", "measured", "expected"}], "training":
    {"config", "looks": as `noise_training` has them}}`.
    """
    training = config.training
    truth = true_noise(config)
    figures = {
        "config": {name: value for name, value in vars(config).items() if name not in ("training", "plot")},
        "truth": {"var": truth.var, "sqr": truth.sqr},
        **estimators(config),
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
            "truth": {"sqr": truth.sqr, "var": truth.var, "scale": truth.scale},
            "followed": {
                "sqr": followed.sqr,
                "var": followed.var,
                "scale": followed.scale,
                "least": least,
                "most": most,
            },
            "estimators": {
                name: {"var": _summary(var, truth.var), "sqr": _summary(sqr, truth.sqr)}
                for name, (var, sqr) in estimates.items()
            },
            "similarity": [
                {
                    "batch": batch,
                    "measured": trained.similarity(batch, training.looks),
                    "expected": truth.similarity(batch),
                }
                for batch in config.halved
            ],
        }
        made.append(look)
        _print_look(console, look)
    return made


def true_noise(config: NoiseConfig) -> Noise:
    """Return the noise that gradients are drawn with."""
    return Noise(config.norm * config.norm, config.dimensions * config.deviation * config.deviation)


def estimators(config: NoiseConfig) -> dict[str, Any]:
    """Return the figures "estimators" and "covariance" of the JSON."""
    counts = np.array(config.batches)
    drawn = [
        (np.sum(gradients**2, axis=2), np.sum((counts @ gradients / counts.sum()) ** 2, axis=1))
        for gradients in _draw(config, counts)
    ]
    norms, squared = (np.concatenate(part) for part in zip(*drawn, strict=True))
    estimates = estimates_of(counts, norms, squared)
    truth, total = true_noise(config), int(counts.sum())
    return {
        "estimators": {
            name: {"var": _summary(var, truth.var), "sqr": _summary(sqr, truth.sqr)}
            for name, (var, sqr) in estimates.items()
        },
        "covariance": [
            {
                "samples": count,
                "measured": float(np.cov(norms[:, place], squared)[0, 1]),
                "expected": 4 * truth.sqr * config.deviation**2 / total,
                "lemma": 4 * count * truth.sqr * truth.var / total**2,
            }
            for place, count in enumerate(config.batches)
        ],
    }


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
    truth, rows = true_noise(config), []
    for batch in config.halved:
        cosines = [
            np.sum(a * b, axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
            for a, b in (np.moveaxis(g, 1, 0) for g in _draw(config, np.array([batch // 2, batch // 2])))
        ]
        measured = float(np.concatenate(cosines).mean())
        rows.append({"batch": batch, "measured": measured, "expected": truth.similarity(batch)})
    return rows


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
    gradient = np.full(config.dimensions, config.norm / np.sqrt(config.dimensions))
    deviations = config.deviation / np.sqrt(counts)[:, None]
    step = max(_AT_ONCE // (len(counts) * config.dimensions), 1)
    for start in range(0, config.draws, step):
        some = min(step, config.draws - start)
        yield gradient + deviations * rng.standard_normal((some, len(counts), config.dimensions))


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
    columns = {
        "measured": ("measured", "{:.4f}"),
        "expected": ("4GᵀΣG/B", "{:.4f}"),
        "lemma": ("Lemma B.5", "{:.4f}"),
    }
    rows = ((str(row["samples"]), row) for row in figures["covariance"])
    console.print(table_of("Cov(|g|², |g_i|²)", "samples of i", columns, rows))


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
