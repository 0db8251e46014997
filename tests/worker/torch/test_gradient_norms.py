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
    for iteration, (counts, gradients, _) in by_iteration.items():
        if iteration and iteration % 10 == 0:
            diagonal = 1 / (np.sqrt(moment / (1 - 0.999**iteration)) + 1e-8)
        diagonals.append(diagonal)
        moment = 0.999 * moment + 0.001 * np.average(gradients, axis=0, weights=counts) ** 2
    return diagonals


def slices(counts, gradients, workers):
    """Join each worker's micro-batches: counts and mean gradients of their slices."""
    each = [workers == number for number in np.unique(workers)]
    means = [np.average(gradients[own], axis=0, weights=counts[own]) for own in each]
    return np.array([counts[own].sum() for own in each]), np.stack(means)


def trained(folder, wait_until, workers, shards, arguments, options=()):
    """Train with uneven workers; the records, and by iteration counts and gradients, and whose they are."""
    port = str(address_of_our_own().port)

    def surroundings(name):
        if shards or not name.startswith("w"):
            return Surroundings()
        place = {"RANK": name[1:], "LOCAL_RANK": name[1:], "WORLD_SIZE": str(workers)}
        return Surroundings(environment={**place, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port})

    with LocalCluster(
        folder, workers=workers, shards=shards, manager_options=options, surroundings=surroundings
    ) as cluster:
        for number in range(workers):
            most = {"--max-batch-size": "5"} if number else {}
            out = ["--out", str(folder / f"w{number}.npz")]
            cluster.start_worker(f"w{number}", SCRIPT, [*out, *arguments], most)
        with contextlib.closing(Observer(cluster.manager, cluster.shard_addresses)) as observer:
            wait_until(observer.poll, "the job")
            wait_until(lambda: not observer.poll() or not observer.members, "its end", seconds=240)
            records = observer.iterations
    noted = [dict(np.load(folder / f"w{number}.npz")) for number in range(workers)]
    for number, one in enumerate(noted):
        one["workers"] = np.full(len(one["counts"]), number)
    together = {key: np.concatenate([one[key] for one in noted]) for key in noted[0]}
    return records, {
        iteration: [
            together[key][together["iterations"] == iteration] for key in ("counts", "gradients", "workers")
        ]
        for iteration in range(len(records))
    }


@pytest.mark.ci
@pytest.mark.parametrize(
    ("workers", "shards", "arguments", "options"),
    [
        pytest.param(2, 2, [], [], id="slices"),
        pytest.param(1, 1, ["--micro-batch", "3", "--scale", "64"], [], id="micro-batches of one, unscaled"),
        pytest.param(2, 1, ["--micro-batch", "3"], ["--exact"], id="micro-batches, exact sums"),
        pytest.param(2, 0, [], [], id="ranks"),
        pytest.param(2, 0, ["--micro-batch", "3"], [], id="ranks, micro-batches"),
        pytest.param(1, 0, ["--micro-batch", "3"], ["--exact"], id="one rank, micro-batches, exact sums"),
    ],
)
def test_records_have_the_norms_of_every_contribution(
    tmp_path, wait_until, workers, shards, arguments, options
):
    """Of each worker's slice, or of each micro-batch; a step earlier where shards sum the gradients."""
    records, by_iteration = trained(tmp_path, wait_until, workers, shards, arguments, options)
    delay = 1 if shards else 0
    assert len(records) == script.EPOCHS * 4
    for record in records[delay:]:
        assert record.norms is not None, record.iteration
        assert record.norms.iteration == record.iteration - delay
        expected, found = norms_of(*by_iteration[record.norms.iteration][:2]), record.norms.norms
        assert_close(found, expected)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("workers", "shards", "arguments", "options"),
    [
        pytest.param(2, 1, ["--micro-batch", "3"], [], id="slices of micro-batches"),
        pytest.param(2, 0, ["--micro-batch", "3"], [], id="ranks, micro-batches"),
        pytest.param(1, 0, ["--micro-batch", "3"], ["--exact"], id="one rank, micro-batches, exact sums"),
    ],
)
def test_with_adam_records_have_the_norms_of_preconditioned_gradients(
    tmp_path, wait_until, workers, shards, arguments, options
):
    """By Adam's second moment before the step; of micro-batches on ranks alone, in every second iteration."""
    arguments = ["--adam", "--epochs", "6", *arguments]
    records, by_iteration = trained(tmp_path, wait_until, workers, shards, arguments, options)
    diagonals = preconditioners(by_iteration)
    delay = 1 if shards else 0
    assert len(records) == 24
    assert all(record.norms is None for record in records[: 10 + delay])
    every = 2 if not shards and "--micro-batch" in arguments else 1
    for record in records[10 + delay :]:
        if record.iteration % every:
            assert record.norms is None
            continue
        assert record.norms is not None, record.iteration
        iteration = record.iteration - delay
        assert record.norms.iteration == iteration
        counts, gradients, own = by_iteration[iteration]
        if shards:
            counts, gradients = slices(counts, gradients, own)
        assert_close(record.norms.norms, norms_of(counts, gradients * diagonals[iteration]))


@pytest.mark.ci
@pytest.mark.parametrize("adam", [False, True], ids=["sgd", "adam"])
def test_one_rank_compares_its_gradients_in_pairs(tmp_path, wait_until, adam):
    """Each second one with the one before, both preconditioned as the second is with Adam."""
    arguments = ["--adam", "--epochs", "6"] if adam else []
    records, by_iteration = trained(tmp_path, wait_until, 1, 0, arguments)
    diagonals = preconditioners(by_iteration) if adam else [1.0] * len(records)
    told = {record.iteration: record.norms for record in records if record.norms is not None}
    # The reduction's buckets change after the first iteration, so that its gradient cannot be compared.
    assert list(told) == list(range(11 if adam else 3, len(records), 2))
    for iteration, step in told.items():
        assert step.iteration == iteration
        counts, gradients = zip(*(by_iteration[i][:2] for i in (iteration - 1, iteration)), strict=True)
        assert_close(
            step.norms, norms_of(np.concatenate(counts), np.concatenate(gradients) * diagonals[iteration])
        )


@pytest.mark.ci
@pytest.mark.parametrize("arguments", [[], ["--micro-batch", "3"]])
def test_with_adam_one_worker_preconditions_pairs_of_its_gradients(tmp_path, wait_until, arguments):
    """By the second moment of those that it has made alone: from the eleventh on it knows of no others."""
    arguments = ["--adam", "--epochs", "8", *arguments]
    records, by_iteration = trained(tmp_path, wait_until, 1, 1, arguments)
    of_whole = [slices(*one) for one in by_iteration.values()]
    pairs = {r.iteration: r.norms.norms for r in records if r.norms and r.norms.norms.contributions == 2}
    assert list(pairs) == list(range(22, len(records), 2))
    for last, found in pairs.items():
        squares = [gradients[0] ** 2 for _, gradients in of_whole[11 : last - 1]]
        moment = sum(0.001 * 0.999**age * one for age, one in enumerate(reversed(squares)))
        diagonal = 1 / (np.sqrt(moment / (1 - 0.999 ** len(squares))) + 1e-8)
        counts = np.concatenate([counts for counts, _ in of_whole[last - 1 : last + 1]])
        gradients = np.concatenate([gradients for _, gradients in of_whole[last - 1 : last + 1]])
        assert_close(found, norms_of(counts, gradients * diagonal))


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
