"""Losses that are means over tokens, with all-reduce: real processes, a real manager, gloo."""

import contextlib
import functools
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch

from idl.plan import permutation
from rpc.processes import end_process
from tests.scripts import train_tokens as script
from tests.services import manager_process
from tests.worker.tokens import (
    BATCH,
    SPEC,
    STEPS,
    Sequences,
    collate,
    make_model,
    ordinary_loss,
    tokens_in,
    train_alone,
)
from tests.worker.torch.test_weights import EXACT, train_with

RANKS = 3
FOLLOW = ("--tolerance", "0", "--predictor", "memoryless")  # batch sizes follow every speed

pytestmark = pytest.mark.slow

TOGETHER = [name for name in script.SCENARIOS if not name.startswith(("exact", "formed"))]


@contextlib.contextmanager
def ranks_of(folder, manager, names, ranks, size=None):
    """Start ranks that go through scenarios; they end with the context at the latest.

    Args:
        ranks: Their numbers.
        size: Of their group; None for as many.
    """
    with contextlib.ExitStack() as stack:
        running = []
        for rank in ranks:
            command = [sys.executable, "-m", script.__name__, "--manager", manager, "--folder", folder]
            command += ["--rank", rank, "--ranks", size or len(ranks), *names]
            log = stack.enter_context((folder / f"{rank}.log").open("w"))
            running.append(subprocess.Popen(list(map(str, command)), stdout=log, stderr=log))
            stack.callback(end_process, running[-1])
        yield running


def end_of(folder, name, running, ranks):
    """Wait for ranks' good ends, and return what they have saved of a scenario."""
    for rank, popen in zip(ranks, running, strict=True):
        status, log = popen.wait(120), (folder / f"{rank}.log").read_text()
        assert status == 0, log[-6000:]
        assert "has a NaN or an infinity" not in log, log
    return [dict(np.load(folder / f"{name}-{rank}.npz")) for rank in ranks]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Return what each of three ranks saved, by scenario; they are started once for all of them."""
    folder = tmp_path_factory.mktemp("ranks")
    with (
        manager_process("--workers", str(RANKS), *FOLLOW) as manager,
        ranks_of(folder, manager, TOGETHER, range(RANKS)) as running,
    ):
        return {name: end_of(folder, name, running, range(RANKS)) for name in TOGETHER}


@functools.cache
def alone():
    """Return the parameters that one process trains with whole batches."""
    return train_alone().numpy()


def difference(ranks):
    """Return the largest difference of any rank's parameters from those of one process."""
    return max(np.abs(rank["parameters"] - alone()).max() for rank in ranks)


@pytest.mark.parametrize(
    "name",
    [
        *("function", "loss", "function-parts", "loss-parts"),
        *("scaled", "scaled-loss", "sums", "shards", "shards-loss"),
    ],
)
def test_parameters_are_those_of_one_process(results, name):
    """Any split trains as one process does, also where a slice, or a batch, has nothing that counts."""
    ranks = results[name]
    assert difference(ranks) < 1e-13
    sizes = np.array([rank["sizes"][:, 1] for rank in ranks])  # (ranks, iterations)
    assert sizes.sum(0).tolist() == [BATCH] * STEPS
    assert len({tuple(column) for column in sizes.T.tolist()}) > STEPS // 3


def test_by_samples_they_are_others(results):
    """Without weights, means over tokens are weighted by samples: the training is another one."""
    assert difference(results["samples"]) > 0.01


def test_weights_are_summed_once_an_iteration_and_only_where_there_are_any(results):
    """A job without weights makes no other reduction; one with them makes one more for each batch."""
    counts = {name: results[name][0]["reductions"] for name in ("samples", "function", "loss")}
    assert counts["function"] == counts["loss"] == counts["samples"] + STEPS


def test_a_function_has_weights_summed_as_the_loader_yields_a_batch(results):
    """So they are there when the loss is scaled; the loss itself says its weight then at the earliest."""
    for rank in results["shards"]:
        assert rank["early"].tolist() == [0] + [1] * (STEPS - 1)
    for rank in results["shards-loss"]:
        assert rank["early"].tolist() == [0] * STEPS


@pytest.mark.parametrize("name", ["classes", "classes-shards"])
def test_a_gradient_of_nan_where_nothing_counts_is_not_looked_at(results, name):
    """Class weights may all be 0 in a slice, whose gradient is NaN then, whatever it is multiplied by."""
    for rank in results[name]:
        assert np.isfinite(rank["parameters"]).all()
        assert np.abs(rank["parameters"] - results["classes"][0]["parameters"]).max() < 1e-13


def test_norms_are_weighted_by_tokens(results):
    """The noise of gradients goes with tokens: a slice's samples are its share of the batch's tokens."""
    iteration, contributions, samples, weighted = results["function"][0]["norms"]
    parts = [rank["sizes"][0, :2] for rank in results["function"]]
    data, model, first = Sequences(), make_model(), permutation(SPEC, 0)[:BATCH]
    weights, squares = [], []
    for start, count in parts:
        inputs, targets = collate([data[int(i)] for i in first[start : start + count]])
        model.zero_grad()
        ordinary_loss(model, inputs, targets).backward()
        weights.append(int(tokens_in((inputs, targets))))
        squares.append(sum(float(p.grad.square().sum()) for p in model.parameters()))
    assert (iteration, contributions, samples) == (0, np.count_nonzero(weights), BATCH)
    assert weighted == pytest.approx(np.dot(weights, squares) * BATCH / sum(weights), rel=1e-9)


def test_mistakes_are_named(results):
    """What `weighted` cannot scale rightly is refused on all ranks, with the remedy."""
    expected = [
        "what a piece's loss is a mean over is not known",
        "reduction 'sum' where the weight is that of evenpace.torch.mean",
        "ranks 7: where the loader has weight=, weights are summed over torch.distributed's default group",
        "it is not known what the gradient is a mean over",
    ]
    for rank in results["refused"]:
        for said, text in zip(rank["said"], expected, strict=True):
            assert text in said
    for rank in results["mixed"]:
        assert "2 of 3 ranks have loaders with weight=, a function of the batch" in rank["said"][0]


def test_exact_sums_have_the_same_bits_with_any_ranks(tmp_path):
    """Weights are summed exactly, by whatever exchange, so that nothing depends on who computes what."""
    ends = []
    for ranks in (1, 2, 3):
        folder = tmp_path / str(ranks)
        folder.mkdir()
        with (
            manager_process("--workers", str(ranks), "--exact", *FOLLOW) as manager,
            ranks_of(folder, manager, ["exact"], range(ranks)) as running,
        ):
            ends += end_of(folder, "exact", running, range(ranks))
    assert difference(ends) < 1e-9
    by_server = train_with(2, shards=1, job={"synchronisation": EXACT}, micro_batch=3, weight_limit=64)[0]
    found = [end["parameters"] for end in ends] + [one.parameters.numpy() for one in by_server]
    assert len({parameters.tobytes() for parameters in found}) == 1


def test_a_rank_alone_does_not_look_at_gradients_of_nothing(tmp_path):
    """Its gradients are compared in pairs, for their noise, and one that is NaN is in none."""
    with (
        manager_process("--workers", "1") as manager,
        ranks_of(tmp_path, manager, ["classes"], [0]) as running,
    ):
        saved = end_of(tmp_path, "classes", running, [0])
    assert np.isfinite(saved[0]["parameters"]).all()


@pytest.mark.parametrize("name", ["formed", "formed-parts"])
def test_parts_of_a_worker_that_dies_are_weighted(tmp_path, wait_until, name):
    """In groups that the manager forms, a batch is done again without it, and then a newcomer is there."""
    with (
        manager_process("--workers", str(RANKS), *FOLLOW) as manager,
        ranks_of(tmp_path, manager, [name], range(RANKS), 1) as running,
    ):
        wait_until(lambda: running[2].poll() is not None, "the end of rank 2")
        assert running[2].returncode == -signal.SIGKILL, (tmp_path / "2.log").read_text()[-6000:]
        wait_until((tmp_path / "expected").exists, "iterations of two ranks")
        with ranks_of(tmp_path, manager, [name], [RANKS], 1) as newcomer:
            saved = end_of(tmp_path, name, [*running[:2], *newcomer], [0, 1, RANKS])
    assert difference(saved) < 1e-13
    sizes = [size for _, _, size in saved[0]["sizes"].tolist()]
    assert sizes[0] == 3
    assert 2 in sizes
    assert sizes[-1] == 3
    assert torch.equal(*(torch.from_numpy(one["parameters"]) for one in saved[:2]))


def test_shards_in_a_group_that_is_formed_are_weighted(tmp_path):
    """The group in which weights are summed is that of the model's shards."""
    with (
        manager_process("--workers", str(RANKS), *FOLLOW) as manager,
        ranks_of(tmp_path, manager, ["formed-shards"], range(RANKS), 1) as running,
    ):
        assert difference(end_of(tmp_path, "formed-shards", running, range(RANKS))) < 1e-13


def test_a_worker_dies_whose_shards_have_copies(tmp_path):
    """The sum of weights ends without an error then, as all operations of a batch do, which is done again."""
    with (
        manager_process("--workers", "4", *FOLLOW) as manager,
        ranks_of(tmp_path, manager, ["formed-copies"], range(4), 1) as running,
    ):
        left = [0, 1, 3]
        saved = end_of(tmp_path, "formed-copies", [running[rank] for rank in left], left)
        assert running[2].wait(60) == -signal.SIGKILL
    assert difference(saved) < 1e-13
    assert set(saved[0]["sizes"][:, 2].tolist()) == {3, 4}


def test_gradients_of_half_precision_are_divided_as_whole_ones_are(results):
    """The factor is not rounded to their precision, and where no rank has a weight, zeros are left."""
    for rank in results["half"]:
        assert rank["gradient"].tolist() == [float(torch.tensor(3 * 16 / 102, dtype=torch.bfloat16))] * 4
        assert rank["nothing"].tolist() == [0.0] * 4
