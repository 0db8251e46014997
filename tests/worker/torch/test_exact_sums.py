"""Exact sums of PyTorch's tensors, and runs that end with the same bits on any workers."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from batchsize_manager.client import ManagerClient
from idl.errors import InvalidRequestError
from idl.exact_sums import FixedPoint
from lab.observer import Observer
from rpc.processes import end_process
from tests.scripts import train_micro_batches
from tests.services import address_of_our_own, is_frozen, manager_process, shard_process
from tests.worker.processes import processes
from worker.torch.exact_sums import ExactSums

SCRIPT = Path(train_micro_batches.__file__)
TOTAL = 24  # samples
VALUES = [1.5, -(2.0**-40), 3e-9, -7e5]


def network():
    """Make a network with a layer that has no gradient unless it is asked for."""
    torch.manual_seed(3)
    return nn.ModuleDict({"used": nn.Linear(3, 2), "norm": nn.BatchNorm1d(2), "unused": nn.Linear(1, 1)})


def sums_over(net):
    """Make the sums of a network's gradients and running statistics."""
    return ExactSums(dict(net.named_parameters()), {"mean": net["norm"].running_mean})


def compute(net, seed):
    """Set gradients and statistics of a micro-batch."""
    net["norm"](net["used"](torch.randn(5, 3, generator=torch.Generator().manual_seed(seed)))).pow(
        3
    ).sum().backward()


def test_tensors_are_summed_as_arrays_are():
    """The integers are those of `idl.exact_sums`, with zeros for a parameter that has no gradient."""
    net = network()
    sums = sums_over(net)
    sums.begin(TOTAL)
    expected = np.zeros(len(sums.flat), dtype=np.int64)
    trained = len(expected) - 2
    for seed, count in enumerate([5, 5, 0, 4]):
        sums.clear()
        compute(net, seed)
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in net.parameters()]
        gradient = torch.cat([gradient.flatten() for gradient in gradients]).numpy()
        sums.add(count)
        if count:
            FixedPoint(TOTAL).add(expected[:trained], gradient, count)
            FixedPoint(TOTAL, statistics=True).add(
                expected[trained:], net["norm"].running_mean.numpy(), count
            )
    assert net["unused"].weight.grad is None
    sums.check()
    assert np.array_equal(sums.flat.numpy(), expected)
    sums.settle()
    mean = FixedPoint(TOTAL).mean(expected[:trained]).astype(np.float32)
    assert np.array_equal(torch.cat([p.grad.flatten() for p in net.parameters()]).numpy(), mean)
    assert torch.equal(net["unused"].weight.grad, torch.zeros(1, 1))
    mean = FixedPoint(TOTAL, statistics=True).mean(expected[trained:]).astype(np.float32)
    assert np.array_equal(net["norm"].running_mean.numpy(), mean)


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), 2.0**20])
def test_the_tensor_that_is_out_of_range_is_named(value):
    """One element of one micro-batch is enough, whatever the others are; the next slice begins anew."""
    net = network()
    sums = sums_over(net)
    sums.begin(TOTAL)
    for broken in (False, True, False):
        sums.clear()
        compute(net, 0)
        if broken:
            net["norm"].weight.grad[1] = value
        sums.add(4)
    with pytest.raises(
        InvalidRequestError, match=r"of (nan|inf|1\.04858e\+06) in norm\.weight: .* below 1\.0"
    ):
        sums.check()
    sums.begin(TOTAL)
    sums.check()


def unscale(parameters):
    """Divide the gradients by a GradScaler's scale."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    scaler.scale(torch.ones(()))
    scaler.unscale_(torch.optim.SGD(parameters, lr=1.0))


CHANGES = {
    "clipped": lambda parameters: nn.utils.clip_grad_norm_(parameters, 1e-3),
    "unscaled": unscale,
    "zeroed": lambda parameters: torch.optim.SGD(parameters, lr=1.0).zero_grad(set_to_none=False),
    "removed": lambda parameters: torch.optim.SGD(parameters, lr=1.0).zero_grad(),
    "replaced": lambda parameters: setattr(parameters[2], "grad", parameters[2].grad * 2),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_gradient_is_refused(change):
    """What a script changes after the micro-batches would be lost without a word."""
    net = network()
    sums = sums_over(net)
    sums.begin(TOTAL)
    sums.clear()
    compute(net, 0)
    sums.add(4)
    sums.leave(4)
    float(net["used"].weight.grad.norm())
    sums.check_left()
    CHANGES[change](list(net.parameters()))
    with pytest.raises(InvalidRequestError, match="gradients were changed between the loop"):
        sums.check_left()


# -- runs of a network with batch normalisation, dropout and augmentation, in float32

BITS = ("--dtype", "float32")


@contextlib.contextmanager
def services(workers, shards, *options):
    """Start a manager of exact jobs and shards; yield their addresses."""
    with contextlib.ExitStack() as stack:
        manager = stack.enter_context(manager_process("--workers", str(workers), "--exact", *options))
        yield manager, [stack.enter_context(shard_process()) for _ in range(shards)]


def ends(folder, workers):
    """Return the set of the workers' final bytes."""
    for name, popen in workers.items():
        assert popen.wait(240) == 0, (folder / f"{name}.log").read_text()[-3000:]
    return {(folder / f"{name}.npy").read_bytes() for name in workers}


def drawn(folder):
    """Return the set of lines of what loops have drawn in an iteration."""
    return {line for path in folder.glob("*.drawn") for line in path.read_text().splitlines()}


def alone(folder):
    """Train with one worker; return the set of its final bytes."""
    folder.mkdir()
    with (
        services(1, 1) as (manager, shards),
        processes(folder, manager, shards, ["w0"], None, SCRIPT, BITS) as workers,
    ):
        return ends(folder, workers)


def with_deaths_and_a_newcomer(folder, wait_until):
    """Train on three shards with four workers of which two die, and another joins; return the final bytes.

    One dies between its pushes to two shards, the other after a push, before its report.
    """
    folder.mkdir()
    names, points = [f"w{i}" for i in range(4)], {"w1": "2:push:1", "w3": "4:report:0"}
    options = ("--policy", "proportional", "--tolerance", "0", "--silence", "600")
    freeze = points | {"w0": "5:report:0"}  # until the newcomer is there
    with (
        services(4, 3, *options) as (manager, shards),
        processes(folder, manager, shards, names, freeze, SCRIPT, BITS) as workers,
        ManagerClient(manager) as client,
    ):
        for name in points:
            wait_until(lambda name=name: is_frozen(workers[name]), f"{name} to be at its point")
            workers[name].kill()
            assert workers.pop(name).wait(60) == -signal.SIGKILL
        wait_until(lambda: is_frozen(workers["w0"]), "w0 to be at its point")
        with processes(folder, manager, shards, ["w4"], None, SCRIPT, BITS) as newcomer:
            wait_until(lambda: len(client.status("default").members) == 3, "the newcomer")
            workers["w0"].send_signal(signal.SIGCONT)
            end = ends(folder, workers | newcomer)
        observer = Observer(manager, ())
        observer.poll()
    assert {len(iteration.workers) for iteration in observer.iterations} == {2, 3, 4}
    return end


def with_all_reduce(folder, ranks):
    """Train with ranks of `DistributedDataParallel`; return the set of their final bytes."""
    folder.mkdir()
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(address_of_our_own().port)}
    with contextlib.ExitStack() as stack:
        manager = stack.enter_context(manager_process("--workers", str(ranks), "--exact"))
        running = {}
        for rank in range(ranks):
            log = stack.enter_context((folder / f"{rank}.log").open("wb"))
            command = [sys.executable, "-m", "evenpace", "worker", "--manager", str(manager)]
            command += ["--name", f"r{rank}", str(SCRIPT), *BITS, "--out", str(folder / f"{rank}.npy")]
            env = os.environ | place | {"RANK": str(rank), "WORLD_SIZE": str(ranks)}
            running[rank] = subprocess.Popen(command, stdout=log, stderr=log, env=env)
            stack.callback(end_process, running[rank])
        return ends(folder, running)


@pytest.mark.ci
def test_a_run_ends_with_the_same_bits_on_any_workers(tmp_path, wait_until):
    """One worker, some that come and go, and ranks that all-reduce: all end with the same bytes.

    The loops draw a scale of the loss before their micro-batches, and a weight decay after them.
    """
    end = alone(tmp_path / "alone")
    assert with_deaths_and_a_newcomer(tmp_path / "deaths", wait_until) == end
    assert with_all_reduce(tmp_path / "ranks", 3) == end
    for run in ("deaths", "ranks"):
        assert drawn(tmp_path / run) == drawn(tmp_path / "alone")
