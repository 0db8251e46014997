"""What a loss is a mean over is seen from the gradients of a batch and of its halves."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from evenpace.cli.doctor import doctor
from evenpace.doctor.loss_check import Parts, judge
from tests.scripts.token_losses import LOSSES, WEIGHTS
from tests.worker.tokens import Sequences, collate, make_model

ROOT = Path(__file__).parents[2]
SCRIPT = str(ROOT / "tests" / "scripts" / "token_losses.py")


def passes(loss, weight, dtype):
    """Return gradients of three batches, each with its halves, and the first again; counts and weights."""
    data, model = Sequences(), make_model().to(dtype)
    gradients, counts, weights = [], [], []
    places = [(start, n) for start in (0, 8, 16) for start, n in ((start, 8), (start, 4), (start + 4, 4))]
    for start, count in [*places, (0, 8)]:
        batch = collate([data[index] for index in range(start, start + count)])
        model.zero_grad()
        LOSSES[loss](model, *batch).backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]).numpy())
        counts.append(count)
        weights.append(np.nan if weight == "none" else float(WEIGHTS[weight](batch)))
    return np.stack(gradients), counts, weights


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    ("loss", "weight", "level", "found"),
    [
        ("samples", "none", "ok", "a mean over the samples"),
        ("tokens", "tokens", "ok", "a mean over what weight= counts"),
        ("tokens", "none", "problem", r"count 0\.\d+ and 0\.\d+ in it, but there are samples: 4 and 4"),
        ("tokens", "unshifted", "problem", r"count 0\.\d+ and 0\.\d+ in it, but weight= counts \d+ and \d+"),
        ("tokens", "padding", "problem", r"weight= counts \d+ and \d+ in two parts .* and \d+ in both"),
        ("padded", "none", "problem", "which is not 1 in all"),
        ("sum", "none", "problem", "a sum over its samples"),
        ("contrastive", "none", "note", "is not seen"),
    ],
)
def test_each_loss_is_judged_by_its_gradients(dtype, loss, weight, level, found):
    """What is right, and what is wrong, is named; what cannot be judged is left alone."""
    finding = judge(*passes(loss, weight, dtype))
    assert finding.level == level
    assert re.search(found, finding.found)


def test_random_numbers_are_no_error():
    """A gradient that differs when it is computed again says nothing."""
    gradients, counts, weights = passes("tokens", "none", torch.float32)
    gradients[-1] *= 1.01
    assert judge(gradients, counts, weights).level == "note"


@given(
    st.integers(0, 2**32 - 1),
    st.floats(0.01, 0.99),
    st.sampled_from([np.float32, np.float64]),
    st.floats(-0.9, 0.9),
)
def test_shares_are_found_within_their_error(seed, share, dtype, cosine):
    """The error that is told covers what rounding leaves unknown, however alike the parts are."""
    drawn = np.random.default_rng(seed)
    one, orthogonal = drawn.normal(size=(2, 200)) * 10.0 ** drawn.uniform(-6, 3)
    other = cosine * one + np.sqrt(1 - cosine**2) * orthogonal
    whole = share * one + (1 - share) * other
    parts = Parts.of(whole.astype(dtype), one.astype(dtype), other.astype(dtype))
    assert np.abs(np.subtract(parts.shares, (share, 1 - share))).max() <= parts.error < 0.01


def test_gradients_of_one_direction_say_nothing():
    """Where both parts have the same gradient, any shares fit."""
    one = np.random.default_rng(1).normal(size=50)
    assert not Parts.of(one, one, one).error < 0.1


def found_by_doctor(*arguments):
    """Return what `evenpace doctor` says of the script's loss."""
    result = CliRunner().invoke(doctor, ["--json", *arguments])
    findings = json.loads(result.stdout)["findings"]
    return next(one for one in findings if one["subject"] == "loss")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "level"),
    [
        ((SCRIPT,), "problem"),
        ((SCRIPT, "--weight", "tokens", "--dropout", "layer"), "ok"),
        ((SCRIPT, "--dropout", "function"), "note"),
        (("--all-reduce", SCRIPT, "--ddp"), "problem"),
        (("--all-reduce", SCRIPT, "--ddp", "--loss", "samples"), "ok"),
        ((SCRIPT, "--loss", "none"), "note"),  # which the script refuses
    ],
    ids=["silent", "weighted", "random", "silent ddp", "ddp", "failing"],
)
def test_a_script_is_judged_as_it_is(arguments, level, monkeypatch):
    """A script runs as its users run it, and its first batches tell what its loss is a mean over."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    assert found_by_doctor(*arguments)["level"] == level
