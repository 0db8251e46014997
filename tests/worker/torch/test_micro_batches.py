"""Micro-batches in PyTorch: one process, and any mapping onto workers, by a loop of plain PyTorch's own."""

import contextlib
import copy
import json
import logging
import random
import struct
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from evenpace.local.cluster import LocalCluster
from idl.errors import InvalidRequestError
from idl.plan import JobSpec, permutation
from lab.observer import Observer
from tests.float64 import wait_for_end
from tests.scripts import freeze_and_run
from tests.scripts import train_micro_batches as script
from tests.services import OpenServices, is_frozen
from worker.data.micro_batches import Draws, MicroBatch
from worker.data.source import load
from worker.session import Session, SessionConfig
from worker.torch.batch_norm import SyncBatchNorm
from worker.torch.ddp import balance
from worker.torch.loader import DataLoader
from worker.torch.micro_batches import micro_batches
from worker.torch.optimizer import distribute
from worker.torch.randomness import seed_generators
from worker.torch.running_statistics import RunningStatistics

SCRIPT = Path(script.__file__)
PATIENT = ("--silence", "240")  # of a manager: who is only slow, or held up, keeps its part


# -- one process, by code of its own


def seed(epoch, position, purpose):
    """Seed the generators as a micro-batch of the script has them for a purpose."""
    packed = struct.pack("<QQQQ", script.SEED, epoch, position, purpose)
    number = int.from_bytes(blake2b(packed, digest_size=8).digest(), "little") // 2
    torch.manual_seed(number % 2**32)
    random.seed(number)
    np.random.seed(number % 2**32)


def pieces(total, size):
    """Return the sizes of a batch's micro-batches, as idl/batchsize_manager.thrift defines them."""
    number = max(1, min(-(-total // size), total // 2))
    if number == 1:
        return [total]
    left = total - size * (number - 2)
    return [size] * (number - 2) + [left - left // 2, left // 2]


def train_alone():
    """Train as the script does, in one process; return the two things that it writes.

    The layers of batch normalisation do not move their running statistics: these are computed from the
    layers' inputs, as the moving average of the mean of the micro-batches' means and variances.
    """
    model, data = script.make_model(), script.Augmented()
    optimizer, schedule = script.make_optimizer(model)
    layers = [layer for layer in model if isinstance(layer, nn.BatchNorm2d)]
    rates = [layer.momentum for layer in layers]
    seen = {layer: [] for layer in layers}
    for layer in layers:
        layer.momentum = 0.0
        layer.register_forward_pre_hook(
            lambda layer, inputs: seen[layer].append(
                (inputs[0].mean((0, 2, 3)).detach(), inputs[0].var((0, 2, 3)).detach())
            )
        )
    spec = JobSpec(script.SAMPLES, script.BATCH_SIZE, script.SEED)
    drawn = []
    for iteration in range(script.EPOCHS * spec.iterations_per_epoch):
        epoch, start, total = spec.batch(iteration)
        order, position = permutation(spec, epoch), start
        weights = [size / total for size in pieces(total, script.MICRO_BATCH)]
        seed(epoch, start, 3)
        before = script.draw()
        optimizer.zero_grad()
        for size, weight in zip(pieces(total, script.MICRO_BATCH), weights, strict=True):
            seed(epoch, position, 0)
            samples = [data[index] for index in order[position : position + size].tolist()]
            seed(epoch, position, 1)
            images, labels = (torch.stack(part) for part in zip(*samples, strict=True))
            (weight * sum(before) * nn.functional.cross_entropy(model(images), labels)).backward()
            position += size
        seed(epoch, start, 2)
        after = script.draw()
        optimizer.param_groups[0]["weight_decay"] = 0.01 * sum(after)
        optimizer.step()
        schedule.step()
        drawn.append([iteration, before, after, script.draw()])
        for layer, momentum in zip(layers, rates, strict=True):
            rate = 1 / (iteration + 1) if momentum is None else momentum
            for number, running in enumerate((layer.running_mean, layer.running_var)):
                mean = sum(w * one[number] for w, one in zip(weights, seen[layer], strict=True))
                running.mul_(1 - rate).add_(mean, alpha=rate)
            seen[layer].clear()
            layer.num_batches_tracked.fill_(iteration + 1)
    return script.vector(model), drawn


def assert_as_alone(folder, names):
    """All workers end with one process's parameters and statistics, to rounding, and draw what it draws."""
    alone, drawn = train_alone()
    for name in names:
        assert np.abs(np.load(folder / f"{name}.npy") - alone).max() < 1e-12
        lines = [json.loads(line) for line in (folder / f"{name}.npy.drawn").read_text().splitlines()]
        assert all(line == drawn[line[0]] for line in lines)


@pytest.mark.slow
def test_workers_that_come_and_die_equal_one_process(tmp_path, wait_until):
    """Parts are uneven, one worker dies before its push, whose slice others do, and another one comes late.

    One of them has loading processes. A second slice of an iteration begins with the statistics that the
    first one began with, and the late worker's moving averages have seen as many batches as the others'.
    """
    with LocalCluster(tmp_path, workers=3, shards=2, manager_options=PATIENT) as cluster:

        def arguments(name, loading=0):
            return ["--out", str(tmp_path / f"{name}.npy"), "--num-workers", str(loading), "--scaled"]

        cluster.start_worker("w0", SCRIPT, arguments("w0"))
        cluster.start_worker("w1", SCRIPT, arguments("w1", 2), {"--max-batch-size": "10"})
        freezing = ["3:push:0", str(SCRIPT), *arguments("w2")]
        frozen = cluster.start_worker("w2", Path(freeze_and_run.__file__), freezing)
        wait_until(lambda: is_frozen(frozen.popen), "w2 to be at its point")
        cluster.start_worker("w3", SCRIPT, arguments("w3"), {"--max-batch-size": "7"})
        with contextlib.closing(Observer(cluster.manager, cluster.shard_addresses)) as observer:
            wait_until(lambda: observer.poll() and "w3" in observer.members, "the late worker's joining")
            frozen.popen.kill()
            frozen.popen.wait()
            cluster.processes.remove(frozen)
            wait_for_end(cluster, wait_until)
            observer.poll()
    assert [len(record.workers) for record in observer.iterations][:3] == [3] * 3
    assert set(observer.iterations[-1].workers) == {"w0", "w1", "w3"}
    assert_as_alone(tmp_path, ["w0", "w1", "w3"])


# -- pieces


@given(
    st.lists(st.integers(2, 6), min_size=1, max_size=5),
    st.sampled_from([0.1, 0.9, None]),
    st.integers(0, 5),
)
def test_running_statistics_move_once_by_the_mean(counts, momentum, done):
    """They are the moving average's one step with the mean of the micro-batches' statistics; frozen, none."""
    torch.manual_seed(sum(counts))
    frozen = nn.BatchNorm1d(3).double().eval()
    model = nn.Sequential(frozen, nn.BatchNorm1d(3, momentum=momentum).double())
    layer = model[1]
    layer.running_mean.normal_()
    layer.num_batches_tracked.fill_(done)
    before = layer.running_mean.clone(), layer.running_var.clone()
    inputs = [torch.randn(count, 3, dtype=torch.float64) for count in counts]
    statistics = RunningStatistics(model)
    statistics.begin()
    for one in inputs:
        statistics.rewind()
        model(one)
        statistics.add(len(one))
    statistics.end(sum(counts))
    rate = 1 / (done + 1) if momentum is None else momentum
    scaled = [(one - frozen.running_mean) / (frozen.running_var + frozen.eps).sqrt() for one in inputs]
    for now, start, each in (
        (layer.running_mean, before[0], [one.mean(0) for one in scaled]),
        (layer.running_var, before[1], [one.var(0) for one in scaled]),
    ):
        mean = sum(count * one for count, one in zip(counts, each, strict=True)) / sum(counts)
        assert torch.allclose(now, (1 - rate) * start + rate * mean, rtol=0, atol=1e-14)
    assert layer.num_batches_tracked == done + 1
    assert torch.equal(frozen.running_mean, torch.zeros(3).double())
    assert frozen.num_batches_tracked == 0


def test_what_has_no_weight_leaves_no_trace():
    """Statistics of a micro-batch without weight do not count, were they infinite."""
    model = nn.BatchNorm1d(2)
    statistics = RunningStatistics(model)
    statistics.begin()
    model(torch.full((2, 2), torch.inf))
    statistics.add(0)
    statistics.end(0)
    assert model.running_mean.tolist() == [0, 0]
    assert model.running_var.tolist() == [1, 1]


# -- a worker of its own


@pytest.fixture
def services():
    """A manager and a shard for a job of one worker."""
    with OpenServices(1) as services:
        yield services


@pytest.fixture
def session(services):
    """The worker's session."""
    return services.session("w")


@pytest.fixture
def rank(services):
    """The worker's session without a parameter server."""
    with contextlib.closing(Session(SessionConfig(services.manager, worker="w"))) as session:
        yield session


def make_loader(session, dataset=None, **options):
    """A loader of batches of 8 in micro-batches of 3: of 3, 3 and 2 samples."""
    dataset = script.Augmented() if dataset is None else dataset
    return DataLoader(dataset, 8, session=session, micro_batch=3, **options)


def loop(loader):
    """An optimiser and a batch of its job."""
    model = nn.Linear(1, 1)
    optimizer = distribute(torch.optim.SGD(model.parameters(), lr=0.1), loader)
    return optimizer, next(iter(loader))


class DrawnTogether(script.Augmented):
    """Samples with numbers that are drawn for all of a list at once."""

    def __getitems__(self, indices):
        return list(zip(indices, torch.randperm(len(indices)).tolist(), strict=True))


def test_a_guess_of_a_longer_micro_batch_is_loaded_again(session):
    """What was loaded ahead for more samples at the same position is not what these samples would get."""
    loader = make_loader(session, DrawnTogether(), num_workers=1)
    indices = np.arange(3)
    part = MicroBatch(0, indices[:2], 2, loader.slices.spec, 0)
    seed = part.seed(Draws.LOADING)
    seed_generators(seed)
    loader.source._at_hand = {seed: dict(enumerate(load(loader.dataset, indices)))}
    seed_generators(seed)
    samples = loader.source.samples(part)
    seed_generators(seed)
    assert samples == load(loader.dataset, indices[:2])


def test_a_step_before_the_last_micro_batch_is_refused(session):
    """Also where the loop was left, and where it was not begun."""
    optimizer, batch = loop(loader := make_loader(session))
    with pytest.raises(InvalidRequestError, match="all micro-batches of iteration 0 are left"):
        optimizer.step()
    for _ in micro_batches(batch):
        with pytest.raises(InvalidRequestError, match="3 micro-batches of iteration 0 are left"):
            optimizer.step()
        break
    assert loader.accumulation.divisor is None


def test_a_loop_before_distribute_is_refused(session):
    """Its gradients would not be pushed."""
    with pytest.raises(InvalidRequestError, match="call distribute before the loop over the loader"):
        next(iter(make_loader(session)))


def test_micro_batches_are_gone_through_once_and_are_of_a_batch(session):
    """A second pass would count them twice; what is no batch of the loader's is named."""
    _, batch = loop(make_loader(session))
    with pytest.raises(TypeError, match=r"evenpace\.torch\.micro_batches"):
        _, _ = batch  # as inputs and targets
    assert len(batch) == 3
    assert [len(labels) for _, labels in micro_batches(batch)] == [3, 3, 2]
    with pytest.raises(InvalidRequestError, match="iteration 0 were gone through before"):
        next(micro_batches(batch))
    with pytest.raises(InvalidRequestError, match=r"micro_batches of a list: .*micro_batch="):
        next(micro_batches([1, 2]))


def test_what_ddp_cannot_do_is_refused(rank):
    """Gradients would be no sum without `balance`; SyncBatchNorm would wait for ranks with fewer passes."""
    batch = next(iter(make_loader(rank)))
    with pytest.raises(InvalidRequestError, match=r"or balance\(model, loader\) without"):
        next(micro_batches(batch))
    with pytest.raises(InvalidRequestError, match="SyncBatchNorm takes all ranks in each pass"):
        SyncBatchNorm(3, session=rank)(torch.rand(4, 3))


@pytest.mark.parametrize("size", [0, 9])
def test_a_micro_batch_is_a_part_of_a_batch(session, size):
    """Its samples are at least 1, and at most the batch's."""
    with pytest.raises(InvalidRequestError, match=f"micro_batch {size}: must be from 1 to .* 8"):
        DataLoader(script.Augmented(), 8, session=session, micro_batch=size)


def test_two_models_balanced_by_one_loader_are_refused(rank, tmp_path):
    """The first model's ranks would wait for each other, since the loader knows the second one's alone."""
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        loader = make_loader(rank)
        models = [DistributedDataParallel(nn.Linear(1, 1)) for _ in range(2)]
        balance(models[0], loader)
        with pytest.raises(InvalidRequestError, match="balance was called before with this loader"):
            balance(models[1], loader)
    finally:
        del models
        distributed.destroy_process_group()


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("generator", [None, np.random.default_rng(0)], ids=["none", "own"])
def test_generators_that_do_not_follow_are_named(session, caplog, num_workers, generator):
    """A generator of the data set's own gives other numbers to whoever loads a sample; torch's do not."""
    dataset = script.Augmented(copy.deepcopy(generator))
    _, batch = loop(make_loader(session, dataset, num_workers=num_workers))
    with caplog.at_level(logging.WARNING):
        list(micro_batches(batch))
    said = [record.message for record in caplog.records if "samples differ" in record.message]
    assert len(said) == (generator is not None)
    assert all("such as dataset.own (Generator)" in text for text in said)
