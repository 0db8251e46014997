"""Forward and backward passes whose memory runs out: real failed allocations on the CPU."""

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import TensorDataset

from evenpace.local.cluster import LocalCluster
from idl.bounds import Bounds
from idl.errors import InvalidRequestError
from idl.plan import JobSpec, permutation
from lab.observer import Observer
from rpc.address import Address
from tests.scripts import train_short_of_memory as script
from tests.worker.least_squares import services
from tests.worker.torch.process_groups import end_process_group
from worker.resources.device_memory import DeviceMemory
from worker.session import Session, SessionConfig
from worker.torch import ddp as torch_ddp
from worker.torch import memory_watch as torch_memory
from worker.torch import optimizer as torch_optimizer
from worker.torch.ddp import balance
from worker.torch.loader import DataLoader
from worker.torch.memory_watch import (
    MemoryExhaustedError,
    is_out_of_memory,
    read_device,
    watch_memory,
    within_memory,
)
from worker.torch.optimizer import distribute

SCRIPT = Path(script.__file__)


class Limits:
    """A loader and its session, which has not joined."""

    def __init__(self):
        self.session = Session(SessionConfig(Address("127.0.0.1", 1), bounds=Bounds(maximum=100)))

    @property
    def told(self):
        """The limit that the manager would be told; None for none since the last time."""
        return self.session.limits.take_learned()


def exhaust():
    """Fail as a large batch does, by allocating a pebibyte."""
    torch.empty(2**50, dtype=torch.uint8)


@pytest.fixture
def task():
    """Make a network, (20, 5) inputs and (20,) labels, float64."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()
    return model, torch.randn(20, 5).double(), torch.arange(20) % 3


def passes(model, most, where, seen):
    """Make a forward and backward pass that fails with more than `most` samples, early, midway or late."""

    def forward_backward(inputs, labels):
        too_many = len(inputs) > most()
        if too_many and where == "forward":
            exhaust()
        plain = isinstance(model, nn.Sequential)
        hidden = model[:2](inputs) if plain else inputs
        logits = model[2](hidden) if plain else model(inputs)
        if too_many and where == "backward":
            # Of the plain model, the last layer's gradient has been accumulated by then.
            (hidden if plain else logits).register_hook(lambda gradient: exhaust())
        loss = nn.functional.cross_entropy(logits, labels)
        loss.backward()
        seen.append(len(inputs))
        return {"loss": loss, "samples": float(len(inputs))}

    return forward_backward


def gradient_of(model):
    """Return all parameters' gradients, flat."""
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def whole_gradient(model, inputs, labels):
    """Return the gradient of the mean loss over all samples."""
    model.zero_grad()
    nn.functional.cross_entropy(model(inputs), labels).backward()
    gradient = gradient_of(model)
    model.zero_grad()
    return gradient


@pytest.mark.ci
@pytest.mark.parametrize(
    ("most", "where"), [(1, "backward"), (3, "forward"), (7, "backward"), (19, "forward")]
)
def test_pieces_give_the_gradient_of_the_whole(task, where, most):
    """Wherever memory runs out, gradient and loss are those of the mean over all samples."""
    model, inputs, labels = task
    expected = whole_gradient(model, inputs, labels)
    loader, seen = Limits(), []
    step = within_memory(passes(model, lambda: most, where, seen), model, loader)
    result = step(inputs, labels)
    assert (gradient_of(model) - expected).abs().max() < 1e-14
    assert result["loss"].item() == pytest.approx(nn.functional.cross_entropy(model(inputs), labels).item())
    assert not result["loss"].requires_grad
    assert sum(seen) == 20
    assert max(seen) <= most
    assert loader.told == step.limit
    assert max(seen) <= step.limit < 20


@pytest.mark.slow
def test_a_loss_that_is_weighted_already_is_left_alone(task):
    """If the function weights its loss by its samples, pieces are only summed."""
    model, inputs, labels = task
    expected = whole_gradient(model, inputs, labels)

    def forward_backward(inputs, labels):
        if len(inputs) > 6:
            exhaust()
        (nn.functional.cross_entropy(model(inputs), labels) * len(inputs) / 20).backward()

    assert within_memory(forward_backward, model, Limits(), weighs=False)(inputs, labels) is None
    assert (gradient_of(model) - expected).abs().max() < 1e-14


@pytest.mark.ci
def test_one_sample_that_does_not_fit_is_an_error(task):
    """If a single sample does not fit, an error is raised; gradients are unchanged."""
    model, inputs, labels = task
    step = within_memory(passes(model, lambda: 0, "backward", []), model, Limits())
    with pytest.raises(MemoryExhaustedError, match="a single sample"):
        step(inputs, labels)
    assert all(p.grad is None for p in model.parameters())


def test_other_errors_and_bad_batches_pass_through(task):
    """Errors other than a lack of memory are passed on."""
    model, inputs, labels = task

    def fail(inputs, labels):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="shapes"):
        within_memory(fail, model, Limits())(inputs, labels)
    with pytest.raises(InvalidRequestError, match="19, 20"):
        within_memory(fail, model, Limits())(inputs, labels[:19])
    with pytest.raises(InvalidRequestError, match="no parameters"):
        within_memory(fail, nn.Tanh(), Limits())
    assert is_out_of_memory(torch.cuda.OutOfMemoryError("CUDA out of memory."))
    assert not is_out_of_memory(MemoryExhaustedError("ours"))
    assert watch_memory(Limits().session, torch.device("cpu")) is None


# -- under DDP


@pytest.fixture
def group(tmp_path):
    """Make a process group of this process alone."""
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def test_under_ddp_a_failure_amid_reductions_is_an_error(task, group):
    """A failure while gradients are being reduced is an error, without a second attempt."""
    model, inputs, labels = task
    model = DistributedDataParallel(model)
    step = within_memory(passes(model, lambda: 20, "forward", []), model, Limits())
    step(inputs, labels)
    step(inputs, labels)

    def fail(gradient):
        exhaust()

    model.module[0].weight.register_hook(fail)  # late in the backward pass
    with pytest.raises(MemoryExhaustedError, match="begun to reduce"):
        step(inputs, labels)


def train_rank(folder, number):
    """Train one of two processes under DDP, on ten samples each; the first runs out of memory."""
    rank = int(number)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=2)
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7).eval(), nn.Linear(7, 3)).double()
    inputs, labels = torch.randn(20, 5).double(), torch.arange(20) % 3
    expected = whole_gradient(model, inputs, labels)
    wrapped = DistributedDataParallel(model)  # with buffers, which it broadcasts in each iteration
    mine = slice(10 * rank, 10 * rank + 10)
    for where in ("forward", "backward"):
        forward_backward = passes(wrapped, lambda: 3 if rank == 0 else 20, where, [])
        step = within_memory(forward_backward, wrapped, Limits())
        for _ in range(3):
            wrapped.zero_grad()
            step(inputs[mine], labels[mine])
            assert (gradient_of(wrapped) - expected).abs().max() < 1e-14
        assert (step.limit is not None) == (rank == 0)
    del wrapped, forward_backward, step
    end_process_group()


@pytest.mark.ci
def test_under_ddp_one_process_that_runs_out_keeps_in_step(tmp_path):
    """Pieces take part in as many collectives as the other process's batch, with the same mean."""
    command = [sys.executable, "-m", "tests.scripts.call", __name__, "train_rank", str(tmp_path)]
    ranks = [subprocess.Popen([*command, rank]) for rank in "01"]
    assert [rank.wait(240) for rank in ranks] == [0, 0]


# -- on a GPU, as CUDA's figures would have it


@pytest.mark.parametrize("name", ["cuda", "cuda:0"])
def test_the_devices_figures_are_told_apart(monkeypatch, name):
    """Of 1000 bytes others hold 300; of this process's 200, 80 are cached; its limit is one half."""
    asked = []

    def figure(value):
        return lambda device: asked.append(device) or value

    figures = {"mem_get_info": (500, 1000), "memory_reserved": 200, "max_memory_allocated": 120}
    figures |= {"reset_peak_memory_stats": None, "memory_stats": {"num_alloc_retries": 2}}
    for function, value in figures.items():
        monkeypatch.setattr(torch.cuda, function, figure(value))
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", figure(0.5), raising=False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    session = Limits().session
    watch = watch_memory(session, torch.device(name))
    assert watch_memory(session, torch.device(name)) is watch is session.meter.memory_usage
    assert read_device(torch.device(name)) == DeviceMemory(
        total=1000, others=300, peak=120, limit=500, shortages=2
    )
    assert watch() == pytest.approx(0.42)
    assert all(device.index == 0 for device in asked[1:])


@pytest.mark.parametrize("by", ["distribute", "balance", "within_memory"])
def test_every_way_to_train_has_the_models_device_watched(monkeypatch, task, group, by):
    """The device is watched with a parameter server, under DDP, and in pieces, without a call."""
    model, inputs, labels = task
    asked = []

    def note(session, device):
        asked.append((session, device))
        return watch_memory(session, device)

    for adapter in (torch_optimizer, torch_ddp, torch_memory):
        monkeypatch.setattr(adapter, "watch_memory", note)
    with services(1) as (manager, shards):
        config = SessionConfig(manager, tuple(shards) if by == "distribute" else ())
        with contextlib.closing(Session(config)) as session:
            loader = DataLoader(TensorDataset(inputs, labels), 20, session=session)
            if by == "distribute":
                distribute(torch.optim.SGD(model.parameters(), lr=0.1), loader)
            elif by == "balance":
                balance(DistributedDataParallel(model), loader)
            else:
                within_memory(passes(model, lambda: 20, "forward", []), model, loader)
    assert asked == [(session, next(model.parameters()).device)]


# -- a whole job


@pytest.mark.ci
def test_a_job_goes_on_when_a_worker_runs_out_of_memory(tmp_path, wait_until):
    """Samples are done in pieces, the limit is lowered, and the parameters are one process's."""
    patient = ("--silence", "240")  # nobody does the part of one that is held up
    with LocalCluster(tmp_path, workers=2, policy="even", manager_options=patient) as cluster:
        for i, limited in enumerate(([], ["--fitting", "8"])):
            cluster.start_worker(f"w{i}", SCRIPT, [*limited, "--out", str(tmp_path / f"{i}.npy")])
        observer = Observer(cluster.manager, cluster.shard_addresses)
        wait_until(lambda: not cluster.check(), "the end of training")
        observer.poll()
    results = [json.loads((tmp_path / f"{i}.json").read_text()) for i in range(2)]
    sizes = [result["sizes"] for result in results]
    assert [sum(parts) for parts in zip(*sizes, strict=True)] == [script.BATCH] * 10
    short = results[1]
    assert short["sizes"][1] == 16 > max(short["pieces"])  # memory did run out
    assert sum(short["pieces"]) == sum(short["sizes"][1:])
    following = zip(short["limits"], short["sizes"][1:], strict=False)
    assert all(size <= limit for limit, size in following if limit is not None)
    assert f"w1 can take {short['limits'][-1]} samples at most" in observer.events
    assert set(results[0]["limits"]) == {None}
    alone = train_alone()
    for i in range(2):
        assert np.abs(np.load(tmp_path / f"{i}.npy") - alone).max() < 1e-9


def train_alone():
    """Train in one process on the whole batches."""
    inputs, targets = script.make_data()
    model = script.make_model()
    optimizer = script.make_optimizer(model)
    spec = JobSpec(script.SAMPLES, script.BATCH, script.SEED)
    for epoch in range(script.EPOCHS):
        for batch in torch.from_numpy(permutation(spec, epoch)).split(script.BATCH):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs[batch]), targets[batch]).backward()
            optimizer.step()
    return nn.utils.parameters_to_vector(model.parameters()).detach().numpy()
