"""A rank that trains with all-reduce by losses that are means over tokens; each scenario is a job of its own.

For each scenario that the command line names, it writes what the rank ended with to FOLDER/NAME-RANK.npz.
"""

import argparse
import os
import signal
import time
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from batchsize_manager.client import ManagerClient
from evenpace.torch import balance, micro_batches, weighted
from idl.errors import InvalidRequestError
from rpc.address import Address
from tests.worker.tokens import (
    EPOCHS,
    IGNORED,
    STEPS,
    loss_for,
    losses_of,
    made_up_times,
    make_loader,
    make_model,
    make_optimizer,
    tokens_in,
)
from worker.session import Session, SessionConfig
from worker.torch.weight_sums import WeightSum

BUCKET_MB = 100 / 2**18  # a hundred elements
CLASSES = torch.tensor([0.0] * 6 + [0.25, 1.5] + [1.0] * 5, dtype=torch.float64)
DIES = STEPS // 2  # the iteration in which a worker dies
JOINS = DIES + 2  # that in which the others wait for a newcomer


def class_weights_in(batch):
    """Return the sum of the weights of a batch's classes, of which six have none."""
    targets = batch[1]
    return CLASSES[targets.where(targets != IGNORED, 0)][targets != IGNORED].sum()


class Scenario:
    """One job: its session, loader and model, and what came out.

    Args:
        weight: Of the loader.
        shards: Whether the model is in FSDP2.
        formed: Whether the manager has the group formed.
        shard_size: Ranks that share a copy of the parameters, at least, in such a group; None for all.
    """

    def __init__(
        self,
        name,
        options,
        weight=tokens_in,
        micro_batch=None,
        shards=False,
        formed=False,
        shard_size=None,
    ):
        self.options = options
        self.name, self.weight, self.micro_batch, self.shards = name, weight, micro_batch, shards
        self.scales = shards  # whether `weighted` scales losses
        self.session = Session(
            SessionConfig(Address.parse(options.manager), (), job=name, worker=f"rank-{options.rank}")
        )
        self.session.meter.measure_by(made_up_times(self.session, options.rank))
        self.model = make_model()
        if shards:
            mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("c", "s")) if shard_size else None
            for layer in (*list(self.model)[1::2], self.model):
                fully_shard(layer, mesh=mesh)
        else:
            self.model = DistributedDataParallel(self.model, bucket_cap_mb=BUCKET_MB)
        self.optimizer = make_optimizer(self.model)
        self.loader = make_loader(self.session, micro_batch=micro_batch, weight=weight, weight_limit=64)
        if formed:
            balance(self.model, self.loader, self.optimizer, shard_size=shard_size)
        self.saved = {}

    def own_loss(self, inputs, targets):
        """Return the loss that the loader's weight says, NaN where nothing counts and that is not "loss"."""
        return loss_for(self.weight, self.session)(self.model, inputs, targets)

    def own_backward(self, inputs, targets):
        """Go backward, by `weighted` where no hook weights gradients."""
        loss = self.own_loss(inputs, targets)
        (weighted(loss, session=self.session) if self.scales else loss).backward()

    def train(self, backward=None, before=lambda part: None):
        """Train with this rank's parts of the batches.

        Args:
            backward: Goes backward from inputs and targets; None for `own_backward`.
            before: Called with the assignment before each batch's passes.
        """
        sizes = []
        for _ in range(EPOCHS):
            for batch in self.loader:
                part = self.session.assignment
                sizes.append([part.start, part.count, distributed.get_world_size()])
                self.optimizer.zero_grad()
                before(part)
                for inputs, targets in micro_batches(batch) if self.micro_batch else [batch]:
                    (backward or self.own_backward)(inputs, targets)
                self.optimizer.step()
        whole = [getattr(p, "full_tensor", lambda p=p: p)() for p in self.model.parameters()]
        parameters = nn.utils.parameters_to_vector(whole).detach()
        self.saved |= {"parameters": parameters.numpy(), "sizes": sizes}

    def close(self):
        """Write, and leave the job."""
        np.savez(self.options.folder / f"{self.name}-{self.options.rank}.npz", **self.saved)
        self.session.close()


def behind_rank_0(scenario):
    """Return what has rank 1 begin a batch's passes once rank 0 has stopped the time of its own.

    So nothing may count as rank 0's time that waits for rank 1. It is given the assignment.
    """
    stopwatch, rank = scenario.session.meter.stopwatch, scenario.options.rank
    stop = stopwatch.stop

    def stopped(iteration):
        return scenario.options.folder / f"{scenario.name}-stopped-{iteration}"

    def stop_and_tell():
        stop()
        if rank == 0 and scenario.session.assignment is not None:
            stopped(scenario.session.assignment.iteration).touch()

    def wait(part):
        # Before, the ranks are checked, and buckets are formed anew.
        while rank == 1 and part.iteration > 2 and not stopped(part.iteration).exists():
            time.sleep(0.001)

    stopwatch.stop = stop_and_tell
    return wait


@contextmanager
def noting_reductions():
    """Yield a list of how many elements each all-reduce of the `with` block has."""
    found, reduce = [], distributed.all_reduce

    def reduce_and_note(tensor, **given):
        found.append(tensor.numel())
        return reduce(tensor, **given)

    distributed.all_reduce = reduce_and_note
    yield found
    distributed.all_reduce = reduce


def by_hook(scenario):
    """DDP, whose hook weights gradients."""
    balance(scenario.model, scenario.loader)
    with noting_reductions() as reductions:
        scenario.train(before=behind_rank_0(scenario) if scenario.micro_batch is None else lambda part: None)
    with ManagerClient(Address.parse(scenario.options.manager)) as client:
        records = client.history(scenario.name, 0)[1]
    first = next(one.norms for one in records if one.norms is not None)
    norms = first.iteration, first.norms.contributions, first.norms.samples, first.norms.weighted
    scenario.saved |= {"reductions": len(reductions), "norms": norms}


def by_loss(scenario):
    """DDP, and a scaled loss."""
    scenario.scales = True
    scenario.train(before=behind_rank_0(scenario))


def by_loss_of_shards(scenario):
    """FSDP2, and a scaled loss; it notes whether weights are summed up before a batch's passes."""
    early = []
    with noting_reductions() as reductions:

        def backward(inputs, targets):
            scenario.own_backward(inputs, targets)
            reductions.clear()

        scenario.train(backward, lambda part: early.append(len(reductions)))
    scenario.saved["early"] = early


def by_classes(scenario):
    """Class weights, by which a slice's gradient is NaN where its classes have none."""
    if not scenario.shards:
        balance(scenario.model, scenario.loader)

    def backward(inputs, targets):
        scores = scenario.model(inputs).transpose(1, 2)
        loss = nn.functional.cross_entropy(scores, targets, CLASSES, ignore_index=IGNORED)
        if not class_weights_in((inputs, targets)):
            loss = scores.sum() * torch.nan  # so are the loss and its gradient by class weights that are 0
        (weighted(loss, session=scenario.session) if scenario.shards else loss).backward()

    scenario.train(backward)


def by_sums(scenario):
    """A loss that is a sum, scaled, of a batch in two pieces."""

    def backward(inputs, targets):
        half = -(-len(inputs) // 2)
        for first in range(0, len(inputs), half):
            place = slice(first, first + half)
            last = first + half >= len(inputs)
            with nullcontext() if last else scenario.model.no_sync():
                loss = losses_of(scenario.model, inputs[place], targets[place]).sum()
                samples = min(len(inputs) - first, half)
                weighted(loss, samples, "sum", session=scenario.session).backward()

    scenario.train(backward)


def refused(scenario):
    """Mistakes of `weighted`, which all ranks make."""
    said = []

    def refuses(*arguments, **options):
        try:
            weighted(*arguments, session=scenario.session, **options)
        except InvalidRequestError as error:
            said.append(str(error))

    for inputs, targets in scenario.loader:
        losses = losses_of(scenario.model, inputs, targets)
        refuses(losses.mean(), 1)
        refuses(losses.sum(), reduction="sum")
        refuses(losses.mean(), ranks=7)
        refuses(losses.mean())
        break
    scenario.saved["said"] = said


def mixed(scenario):
    """Ranks whose weights are given in different ways."""
    for inputs, targets in scenario.loader:
        try:
            scenario.own_backward(inputs, targets)
        except InvalidRequestError as error:
            scenario.saved["said"] = [str(error)]
        break


def half_precision(scenario):
    """Sums in half precision that are divided by the ranks' weights, 102 in all, and where there are none."""
    gradient, nothing = torch.full((4,), 3.0, dtype=torch.bfloat16), torch.zeros(4)
    WeightSum(102.0 / scenario.options.ranks, gradient.device).divide(gradient, 16)
    WeightSum(0.0, nothing.device).divide(nothing, 16)
    scenario.saved |= {"gradient": gradient.float(), "nothing": nothing}


def die(scenario, part):
    """Let rank 2 die with its part of a batch."""
    if scenario.options.rank == 2 and part.iteration == DIES:
        os.kill(os.getpid(), signal.SIGKILL)


def shrinking(scenario):
    """A group that the manager forms, of which one worker dies."""
    scenario.train(before=partial(die, scenario))


def changing(scenario):
    """Likewise, and another one comes later."""
    options = scenario.options

    def before(part):
        die(scenario, part)
        if options.rank == 0 and part.iteration == JOINS:
            (options.folder / "expected").touch()
            with ManagerClient(Address.parse(options.manager)) as client:
                while len(client.status(scenario.name).members) < 3:
                    time.sleep(0.01)

    scenario.train(before=before)


SCENARIOS = {
    "samples": (by_hook, {"weight": None}),
    "function": (by_hook, {}),
    "loss": (by_hook, {"weight": "loss"}),
    "function-parts": (by_hook, {"micro_batch": 3}),
    "loss-parts": (by_hook, {"weight": "loss", "micro_batch": 3}),
    "classes": (by_classes, {"weight": class_weights_in}),
    "classes-shards": (by_classes, {"weight": class_weights_in, "shards": True}),
    "shards": (by_loss_of_shards, {"shards": True}),
    "shards-loss": (by_loss_of_shards, {"weight": "loss", "shards": True}),
    "scaled": (by_loss, {}),
    "scaled-loss": (by_loss, {"weight": "loss"}),
    "sums": (by_sums, {}),
    "refused": (refused, {"weight": "loss"}),
    "mixed": (mixed, {"shards": True}),
    "half": (half_precision, {}),
    "exact": (by_hook, {"micro_batch": 3}),
    "formed": (changing, {"formed": True}),
    "formed-parts": (changing, {"formed": True, "micro_batch": 3}),
    "formed-shards": (by_loss_of_shards, {"formed": True, "shards": True}),
    "formed-copies": (shrinking, {"formed": True, "shards": True, "shard_size": 2}),
}


def main():
    """Go through the scenarios."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--manager", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("scenarios", nargs="+")
    options = parser.parse_args()
    torch.set_num_threads(1)
    store = distributed.FileStore(str(options.folder / "store"), options.ranks)
    if options.ranks == 1:
        store = distributed.HashStore()
    distributed.init_process_group(
        "gloo", store=store, rank=options.rank if options.ranks > 1 else 0, world_size=options.ranks
    )
    for name in options.scenarios:
        train, given = SCENARIOS[name]
        if name == "mixed" and options.rank == 1:
            given = given | {"weight": "loss"}
        scenario = Scenario(name, options, **given)
        train(scenario)
        scenario.close()
    if options.ranks > 1:
        distributed.barrier()
    # Fully sharded modules hold the group, so that its threads cannot be joined; see
    # tests/worker/torch/process_groups.py.
    os._exit(0)


if __name__ == "__main__":
    main()
