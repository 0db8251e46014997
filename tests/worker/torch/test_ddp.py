"""All-reduce with torch.distributed: real processes, a real manager, gloo."""

import contextlib
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from batchsize_manager.client import ManagerClient
from idl.plan import JobSpec, permutation
from lab.observer import Observer
from lab.proxy import Proxy
from rpc.processes import end_process
from tests.scripts import train_ddp as script
from tests.services import address_of_our_own, manager_process

RANKS = 4
TOTALS = [script.BATCH] * 4 + [script.SAMPLES - 4 * script.BATCH]  # of an epoch
FOLLOW = ("--tolerance", "0", "--predictor", "memoryless")  # batch sizes follow every speed

pytestmark = pytest.mark.slow


def start_ranks(stack, ways, folder, *scenarios):
    """Start a rank for each address by which the manager is reached, as torchrun does, to run scenarios.

    They end with the stack at the latest.
    """
    port = str(address_of_our_own().port)
    ranks = []
    for rank, way in enumerate(ways):
        command = [sys.executable, "-m", script.__name__, "--manager", way, "--folder", folder, *scenarios]
        with (folder / f"{rank}.log").open("w") as log:
            popen = subprocess.Popen(
                list(map(str, command)),
                stdout=log,
                stderr=log,
                env=os.environ
                | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(len(ways))}
                | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port},
            )
        stack.callback(end_process, popen)
        ranks.append(popen)
    return ranks


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Return what each of four ranks wrote, by scenario; they are started once for all of them."""
    folder = tmp_path_factory.mktemp("ddp")
    with contextlib.ExitStack() as stack:
        manager = stack.enter_context(manager_process("--workers", str(RANKS), *FOLLOW))
        ranks = start_ranks(stack, [manager] * RANKS, folder, *script.SCENARIOS)
        for i, rank in enumerate(ranks):
            assert rank.wait(540) == 0, (folder / f"{i}.log").read_text()[-6000:]
    return {
        name: [dict(np.load(folder / f"{name}-{rank}.npz")) for rank in range(RANKS)]
        for name in script.SCENARIOS
    }


SPEC = JobSpec(script.SAMPLES, script.BATCH, script.SEED)


def train_alone(make=script.make_model, clip=None, batch_norm=False):
    """Train in one process on the whole batches."""
    batches = [SPEC.batch(iteration) for iteration in range(4 * SPEC.iterations_per_epoch)]
    return train_alone_on(batches, make(batch_norm=True) if batch_norm else make(), clip)


def train_alone_on(batches, model=None, clip=None):
    """Train in one process on these batches, (epoch, start, total) each."""
    inputs, labels = script.make_data()
    model = model or script.make_model()
    optimizer = script.make_optimizer(model)
    for epoch, start, total in batches:
        batch = torch.from_numpy(permutation(SPEC, epoch)[start : start + total])
        optimizer.zero_grad()
        script.plain(model, inputs[batch], labels[batch])
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return model


def vector(model):
    """Return all parameters, (elements,)."""
    return nn.utils.parameters_to_vector([p.detach().double() for p in model.parameters()]).numpy()


def check_equal(ranks, alone):
    """Check that the ranks took uneven slices of every batch, and ended with one process's parameters."""
    sizes = np.array([rank["sizes"] for rank in ranks])  # (ranks, iterations)
    assert sizes.sum(0).tolist() == TOTALS * (sizes.shape[1] // len(TOTALS))
    assert (sizes == 0).any(), "an epoch's last batch has fewer samples than there are ranks"
    assert len({tuple(column) for column in sizes.T.tolist()}) > 10, "batch sizes change"
    for rank in ranks:
        assert np.abs(rank["parameters"] - vector(alone)).max() < 1e-9


@pytest.mark.ci
@pytest.mark.parametrize("name", ["hook", "fsdp"])
def test_uneven_ranks_equal_one_process_on_the_big_batch(results, name):
    """By the hook or the scaled loss, uneven and changing batches give the parameters of one process."""
    check_equal(results[name], train_alone())


def test_parameters_that_an_iteration_leaves_out_are_reduced_rightly(results):
    """With find_unused_parameters, parts of the model may have no gradient."""
    check_equal(results["unused"], train_alone(script.Branches))


def test_gradients_are_clipped_as_those_of_the_big_batch(results):
    """After the reduction, clipping under a GradScaler sees the whole batch's gradient."""
    alone = train_alone(clip=0.5)
    assert np.abs(vector(alone) - vector(train_alone())).max() > 1e-3
    check_equal(results["pieces_loss"], alone)


def test_mistakes_are_named(results):
    """All uses that would give a wrong gradient are refused on all ranks, with the remedy."""
    expected = [
        "Sequential: balance takes a model in torch's DistributedDataParallel; for others, such as those of",
        "FSDPSequential: balance takes a model in torch's DistributedDataParallel, each of whose ranks has "
        "all parameters, but 0.weight is a DTensor",
        "Sequential: balance takes a model in torch's DistributedDataParallel, each of whose ranks has all",
        "1 synchronises its statistics",
        "shard_size 2: only for a model in FSDP2",
        "optimizer LBFGS with max_iter=20, line_search_fn=None: how often it evaluates a batch depends",
        "broadcast_buffers=False",
        "balance needs to be the model's only communication hook",
        "every worker goes through all batches, with samples without weight where it has no part",
        "the session has a parameter server, which weights gradients: leave out `ps`",
        "before the parameter server weights them: leave out `ps`",
        "weighted(loss): only for batches that an evenpace loader gave",
        "samples 1000000: this worker's batch has",
        "reduction 'none'",
        "the gradient is weighted twice: by balance(model, loader), and by weighted(loss)",
        "iteration 1 was finished, but its gradient was not weighted: call balance",
    ]
    for rank in results["refused"]:
        assert len(rank["said"]) == len(expected)
        for said, text in zip(rank["said"], expected, strict=True):
            assert text in said


def test_synchronised_batch_normalisation_equals_the_big_batch(results):
    """With statistics over all workers and a weighted loss, uneven ranks equal one process."""
    alone = train_alone(batch_norm=True)
    check_equal(results["batch_norm"], alone)
    for rank in results["batch_norm"]:
        assert np.abs(rank["mean"] - alone[1].running_mean.numpy()).max() < 1e-9
        assert np.abs(rank["var"] - alone[1].running_var.numpy()).max() < 1e-9
        assert rank["tracked"] == alone[1].num_batches_tracked


def test_running_statistics_are_averaged_by_samples(results):
    """Each rank's statistics are weighted by its samples; all ranks end with the same."""
    ranks = results["statistics"]
    samples = [rank["sizes"].sum() for rank in ranks]
    expected = np.average([rank["own"] for rank in ranks], axis=0, weights=samples)
    assert np.ptp([rank["own"] for rank in ranks], axis=0).max() > 1e-3
    for rank in ranks:
        assert np.abs(rank["averaged"] - expected).max() < 1e-12


def others_wait(client):
    """Return whether ranks 0 and 2 have reported an iteration that rank 1 has not."""
    states = {member.worker: member.state for member in client.status("endless_fsdp").members}
    return [states[f"rank-{rank}"] == "waiting" for rank in range(3)] == [True, False, True]


@pytest.mark.ci
@pytest.mark.parametrize("fault", ["killed", "waited for and cut off"])
def test_ranks_with_shards_end_when_one_is_gone(tmp_path, wait_until, fault):
    """By the manager or by their group, wherever they are then: a line says why, and what to do."""
    with contextlib.ExitStack() as stack:
        manager = stack.enter_context(manager_process("--workers", "3", *FOLLOW))
        proxy = stack.enter_context(Proxy())
        links = [proxy.add(str(rank), manager) for rank in range(3)]
        ranks = start_ranks(stack, links, tmp_path, "endless_fsdp")
        observer = Observer(manager, (), job="endless_fsdp")
        stack.callback(observer.close)
        wait_until(lambda: observer.poll() and len(observer.iterations) > 5, "the first iterations", 180)
        if fault == "killed":
            ranks[1].kill()
        else:
            proxy.do(proxy.links["1"].swallow)
            client = stack.enter_context(ManagerClient(manager, timeout=60.0))
            wait_until(lambda: others_wait(client), "the others to wait", 60)
            ranks[1].send_signal(signal.SIGSTOP)
            proxy.do(proxy.links["1"].cut)
        said = "rank-1 died: its connection broke, and the others cannot go on without it"
        if fault == "killed":
            said = "a collective operation has failed: if a rank has died, "
        for rank in (0, 2):
            assert ranks[rank].wait(60) == 1
            # Before it there is the traceback, of who was not in a collective operation.
            line = [line for line in (tmp_path / f"{rank}.log").read_text().splitlines() if said in line][-1]
            assert "a shard of the parameters is gone with its rank" in line
            assert line.endswith("start the job again, and it goes on from the script's checkpoint")
