"""The norms of PyTorch's gradients, against those of gradients worked out by passes of their own."""

import contextlib
from pathlib import Path

import numpy as np
import pytest
import torch

from evenpace.local.cluster import LocalCluster, Surroundings
from idl.gradient_norms import GradientNorms
from lab.observer import Observer
from tests.scripts import train_noted_gradients as script
from tests.services import address_of_our_own
from worker.torch.gradient_norms import PassNorms, squared_norm

SCRIPT = Path(script.__file__)


def norms_of(counts, gradients):
    """Those of contributions, (n,) and (n, elements), and of their weighted mean."""
    mean = np.average(gradients, axis=0, weights=counts)
    each = [(int(count), float(g @ g)) for count, g in zip(counts, gradients, strict=True)]
    return GradientNorms.of(each, float(mean @ mean))


def assert_close(found, expected):
    """Check that norms are of the same contributions, and the same but for rounding."""
    assert (found.contributions, found.samples) == (expected.contributions, expected.samples)
    assert found.weighted == pytest.approx(expected.weighted, rel=1e-6)
    assert found.squared == pytest.approx(expected.squared, rel=1e-6)


def preconditioners(by_iteration):
    """Adam's for each iteration, (elements,): of the second moment after the last tenth step, if any."""
    moment, diagonal, diagonals = 0.0, None, []
    for iteration, (counts, gradients) in by_iteration.items():
        if iteration and iteration % 10 == 0:
            diagonal = 1 / (np.sqrt(moment / (1 - 0.999**iteration)) + 1e-8)
        diagonals.append(diagonal)
        moment = 0.999 * moment + 0.001 * np.average(gradients, axis=0, weights=counts) ** 2
    return diagonals


def trained(folder, wait_until, workers, shards, arguments):
    """Train with uneven workers; return the records, and by iteration counts and gradients."""
    port = str(address_of_our_own().port)

    def surroundings(name):
        if shards or not name.startswith("w"):
            return Surroundings()
        place = {"RANK": name[1:], "LOCAL_RANK": name[1:], "WORLD_SIZE": str(workers)}
        return Surroundings(environment={**place, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port})

    with LocalCluster(folder, workers=workers, shards=shards, surroundings=surroundings) as cluster:
        for number in range(workers):
            most = {"--max-batch-size": "5"} if number else {}
            out = ["--out", str(folder / f"w{number}.npz")]
            cluster.start_worker(f"w{number}", SCRIPT, [*out, *arguments], most)
        with contextlib.closing(Observer(cluster.manager, cluster.shard_addresses)) as observer:
            wait_until(observer.poll, "the job")
            wait_until(lambda: not observer.poll() or not observer.members, "its end", seconds=240)
            records = observer.iterations
    noted = [dict(np.load(folder / f"w{number}.npz")) for number in range(workers)]
    together = {key: np.concatenate([one[key] for one in noted]) for key in noted[0]}
    return records, {
        iteration: [together[key][together["iterations"] == iteration] for key in ("counts", "gradients")]
        for iteration in range(len(records))
    }


@pytest.mark.ci
@pytest.mark.parametrize(
    ("shards", "arguments"),
    [
        pytest.param(2, ["--micro-batch", "3", "--scale", "64"], id="at shards, unscaled"),
        pytest.param(0, ["--micro-batch", "3"], id="on ranks"),
    ],
)
def test_records_have_the_norms_of_every_micro_batch(tmp_path, wait_until, shards, arguments):
    """Of two workers; a step earlier where shards sum the gradients."""
    records, by_iteration = trained(tmp_path, wait_until, 2, shards, arguments)
    delay = 1 if shards else 0
    assert len(records) == script.EPOCHS * 4
    for record in records[delay:]:
        assert record.norms is not None, record.iteration
        assert record.norms.iteration == record.iteration - delay
        assert_close(record.norms.norms, norms_of(*by_iteration[record.norms.iteration]))


@pytest.mark.ci
def test_with_adam_records_have_the_norms_of_preconditioned_gradients(tmp_path, wait_until):
    """By Adam's second moment before the step; of micro-batches on ranks, in every second iteration."""
    arguments = ["--adam", "--epochs", "6", "--micro-batch", "3"]
    records, by_iteration = trained(tmp_path, wait_until, 2, 0, arguments)
    diagonals = preconditioners(by_iteration)
    assert len(records) == 24
    assert all(record.norms is None for record in (*records[:10], *records[11::2]))
    for record in records[10::2]:
        assert record.norms is not None, record.iteration
        assert record.norms.iteration == record.iteration
        counts, gradients = by_iteration[record.iteration]
        assert_close(record.norms.norms, norms_of(counts, gradients * diagonals[record.iteration]))


@pytest.mark.ci
def test_one_rank_compares_its_gradients_in_pairs(tmp_path, wait_until):
    """Each second one with the one before, both preconditioned as the second is with Adam."""
    records, by_iteration = trained(tmp_path, wait_until, 1, 0, ["--adam", "--epochs", "6"])
    diagonals = preconditioners(by_iteration)
    told = {record.iteration: record.norms for record in records if record.norms is not None}
    # The reduction's buckets change after the first iteration, so that its gradient cannot be compared.
    assert list(told) == list(range(11, len(records), 2))
    for iteration, step in told.items():
        assert step.iteration == iteration
        counts, gradients = zip(*(by_iteration[i] for i in (iteration - 1, iteration)), strict=True)
        assert_close(
            step.norms, norms_of(np.concatenate(counts), np.concatenate(gradients) * diagonals[iteration])
        )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_norm_is_of_any_floating_type(dtype):
    """Half precision is widened first, since its squares may not be numbers any more."""
    gradient = torch.full((40, 5), 300.0, dtype=dtype)
    assert float(squared_norm(gradient)) == pytest.approx(200 * 300.0**2, rel=1e-6)


def test_a_pass_is_told_from_what_was_there_before():
    """`grad` sums several passes; the norm is that of the last one's part."""
    weight = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
    norms = PassNorms([weight])
    (weight * torch.tensor([5.0, 6.0, 7.0])).sum().backward()
    norms.begin([None])
    (weight * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert float(norms.take()) == 14.0
    assert weight.grad.tolist() == [6.0, 8.0, 10.0]
    (weight * 2.0).sum().backward()
    assert float(norms.take()) == 0.0
