"""A check of what a script's loss is a mean over: the samples, what `weight=` counts, or something else.

The gradient of a mean is g(A and B) = (n_A g(A) + n_B g(B)) / (n_A + n_B). So three gradients tell n_A and
n_B, up to a factor, whatever the loss is. Where none fits, as for contrastive losses or with random numbers,
nothing is said.
"""

import math
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenpace.doctor.findings import Finding, note, ok, problem
from evenpace.local.cluster import LocalCluster

_SAMPLES = 8  # of a batch that is taken apart: few, so that parts differ in their tokens
_SECONDS = 600.0
_SUBJECT = "loss"
_FITS = 1e-4  # relative distance of g(A and B) from the nearest combination of g(A) and g(B)
_CERTAIN = 20  # times what float32 leaves unknown, from which on a share is another one


@dataclass(frozen=True)
class Parts:
    """A batch of two parts, by the gradients of both and of the whole.

    Attributes:
        shares: Of each part, the factor of its gradient in the whole's, (2,); NaN where none fits.
        error: What is not known of the shares.
    """

    shares: tuple[float, float]
    error: float

    @classmethod
    def of(cls, whole: NDArray[Any], one: NDArray[Any], other: NDArray[Any]) -> "Parts":
        """Return the shares that fit best, from three gradients, (elements,) each."""
        scale = float(np.linalg.norm(whole)) or 1.0
        basis = np.stack([one, other], axis=1).astype(np.float64)
        lengths = np.linalg.norm(basis, axis=0)
        if not (np.isfinite(basis).all() and np.isfinite(whole).all() and lengths.all()):
            return cls((math.nan, math.nan), math.inf)
        basis /= lengths
        shares, _, _, singular = np.linalg.lstsq(basis, whole.astype(np.float64), rcond=None)
        distance = float(np.linalg.norm(basis @ shares - whole)) / scale
        if distance > _FITS:
            return cls((math.nan, math.nan), math.inf)
        rounding = max(distance, float(np.finfo(whole.dtype).eps))
        error = rounding * scale / (float(singular[-1]) or 1e-300) / float(lengths.min())
        first, second = (shares / lengths).tolist()
        return cls((first, second), _CERTAIN * error)


def judge(gradients: NDArray[Any], counts: Sequence[int], weights: Sequence[float]) -> Finding:
    """Return what the gradients of batches, each with its two halves, say of the loss.

    Args:
        gradients: (passes, elements): batch, one half, other half, and so on; and the first once more.
        counts: Samples of each, (passes,).
        weights: What each gradient is a mean over, by the script, (passes,); NaN where it says nothing.
    """
    first, again = gradients[0], gradients[-1]
    scale = float(np.linalg.norm(first)) or 1.0
    if not float(np.linalg.norm(again - first)) <= _FITS * scale:
        return note(_SUBJECT, "its gradient depends on random numbers, so what it is a mean over is not seen")
    given = not np.isnan(weights).any()
    numbers = np.asarray(weights if given else counts, dtype=np.float64)
    said = "weight= counts" if given else "there are samples:"
    seen = 0
    for begin in range(0, len(gradients) - 1, 3):
        whole, one, other = numbers[begin : begin + 3].tolist()
        if given and abs(whole - one - other) > 1e-6 * whole:
            return problem(
                _SUBJECT,
                f"{said} {one:g} and {other:g} in two parts of a batch, and {whole:g} in both together",
                "count what does not depend on how a batch is split: not the padding",
            )
        parts = Parts.of(*gradients[begin : begin + 3])
        if not whole or not parts.error < 0.1:
            continue
        seen += 1
        expected = one / whole, other / whole
        if max(abs(a - b) for a, b in zip(parts.shares, expected, strict=True)) <= max(_FITS, parts.error):
            continue
        a, b = parts.shares
        certain = 2 * max(_FITS, parts.error)
        if abs(a - 1) + abs(b - 1) <= certain:
            return problem(
                _SUBJECT,
                "it is a sum over its samples, and gradients are averaged",
                "divide it by what it sums over, and give the loader weight= if that is not the samples",
            )
        if abs(a + b - 1) > certain:
            return problem(
                _SUBJECT,
                f"two parts of a batch count {a:.4f} and {b:.4f} in it, which is not 1 in all: what it is a "
                f"mean over depends on how a batch is split, as where padding counts",
                "leave out what does not count, as by a mask, and give the loader weight= for the number of "
                "the others",
            )
        advice = (
            "have weight= return what the loss is divided by"
            if given
            else "give the loader weight=, a function from a batch to what its loss is divided by: its tokens"
        )
        return problem(
            _SUBJECT,
            f"two parts of a batch count {a:.4f} and {b:.4f} in it, but {said} {one:g} and {other:g} "
            f"({expected[0]:.4f} and {expected[1]:.4f})",
            advice,
        )
    if not seen:
        return note(
            _SUBJECT,
            "the gradient of a batch is no mean of its parts' gradients, as where samples are compared with "
            "each other; what it is a mean over is not seen",
        )
    return ok(_SUBJECT, f"it is a mean over {'what weight= counts' if given else 'the samples'}")


def check(script: Path, arguments: Sequence[str], all_reduce: bool) -> Iterator[Finding]:
    """Run a script's first batches, in parts, and yield what its loss is a mean over.

    Args:
        all_reduce: Whether the script reduces gradients itself, as with `DistributedDataParallel`.
    """
    with tempfile.TemporaryDirectory(prefix="evenpace-doctor-") as name:
        found = Path(name) / "found.npz"
        with LocalCluster(
            Path(name), shards=0 if all_reduce else 1, policy="even", batch_size=_SAMPLES
        ) as cluster:
            services = [str(cluster.manager), *map(str, cluster.shard_addresses)]
            command = [sys.executable, "-m", "evenpace.doctor.loss_probe", str(found), *services, "--"]
            process = cluster.start_other(script.name, [*command, str(script), *arguments])
            assert process.popen is not None
            try:
                process.popen.wait(_SECONDS)
                why = f"{process.end_in_words()} before its tenth batch"
            except subprocess.TimeoutExpired:
                why = f"{process.name} did not come to its tenth batch within {_SECONDS:g} s"
            last = process.tail().splitlines()[-1:]
        if found.exists():
            with np.load(found) as results:
                yield judge(results["gradients"], results["counts"].tolist(), results["weights"].tolist())
        else:
            yield note(_SUBJECT, ": ".join([why, *last]))
