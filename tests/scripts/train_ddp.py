"""Run on each rank: small float64 trainings with all-reduce, each a job of its own.

For each scenario that the command line names, it writes what the rank ended with to FOLDER/NAME-RANK.npz.
"""

import argparse
import contextlib
import copy
import os
import pickle
from pathlib import Path

import numpy as np
import torch
from torch import distributed, nn
from torch.distributed.algorithms.join import Join
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import evenpace
from idl.bounds import Bounds
from idl.errors import InvalidRequestError
from rpc.address import Address
from worker.session import Session, SessionConfig
from worker.torch.batch_norm import SyncBatchNorm, average_statistics

SAMPLES, BATCH = 131, 32  # an epoch's last batch has 3 samples, for 4 ranks
FEATURES, CLASSES, SEED = 12, 4, 5


def make_data():
    """A fixed classification task: (samples, features) and (samples,)."""
    generator = np.random.default_rng(0)
    inputs = generator.normal(size=(SAMPLES, FEATURES))
    labels = (inputs @ generator.normal(size=(FEATURES, CLASSES))).argmax(1)
    return torch.from_numpy(inputs), torch.from_numpy(labels)


def make_model(batch_norm=False):
    """The same first parameters every time."""
    torch.manual_seed(SEED)
    norm = nn.BatchNorm1d(24) if batch_norm else nn.Identity()
    layers = nn.Linear(FEATURES, 24), norm, nn.Tanh(), nn.Linear(24, 16), nn.Tanh(), nn.Linear(16, CLASSES)
    return nn.Sequential(*layers).double()


class Branches(nn.Module):
    """A model that leaves a part of it out in every other iteration, and one part always."""

    def __init__(self):
        super().__init__()
        self.stem, self.extra = make_model(), nn.Linear(FEATURES, CLASSES).double()
        self.unused = nn.Linear(1, 1)
        nn.init.constant_(self.extra.weight, 0.1)
        nn.init.constant_(self.extra.bias, 0.0)
        self.passes = 0

    def forward(self, inputs):
        """Class scores."""
        self.passes += 1
        return self.stem(inputs) + (self.extra(inputs) if self.passes % 2 else 0)


def make_optimizer(model):
    """Momentum and decay, so that a wrong gradient leaves traces."""
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)


def loss_of(model, inputs, labels):
    """The mean over the samples."""
    return nn.functional.cross_entropy(model(inputs), labels)


class Scenario:
    """One job: its session, loader, and what came out."""

    def __init__(self, name, options, minimum=1, epochs=4, **loading):
        self.rank = distributed.get_rank()
        self.epochs = epochs
        config = SessionConfig(
            Address.parse(options.manager),
            (),
            job=name,
            worker=f"rank-{self.rank}",
            bounds=Bounds(minimum),
            barrier_timeout=600.0,
        )
        self.session = Session(config)
        self.session.meter.measure_by(self._made_up_time)
        data = torch.utils.data.TensorDataset(*make_data())
        self.loader = evenpace.torch.DataLoader(
            data, BATCH, session=self.session, shuffle=True, seed=SEED, **loading
        )
        self.path = options.folder / f"{name}-{self.rank}.npz"
        self.sizes, self.saved = [], {}

    def weighted(self, *arguments, **options):
        """Of this scenario's session."""
        return evenpace.torch.weighted(*arguments, session=self.session, **options)

    def _made_up_time(self):
        """For speeds that jump about, so that batch sizes do."""
        assignment = self.session.assignment
        speed = np.random.default_rng([self.rank, assignment.iteration]).lognormal(sigma=1.2)
        return lambda: max(1, assignment.count) / speed

    def batches(self):
        """All batches of all epochs, with the assignment's count noted."""
        for _ in range(self.epochs):
            for inputs, labels in self.loader:
                assignment = self.session.assignment
                self.sizes.append(assignment.count)
                assert len(labels) == max(1, assignment.count)
                yield inputs, labels

    def train(self, model, optimizer, backward, clip=None):
        """The loop that most have in common."""
        for inputs, labels in self.batches():
            optimizer.zero_grad()
            backward(model, inputs, labels)
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
        self.keep(model)

    def keep(self, model, **more):
        """What the parameters are now."""
        parameters = [getattr(p, "full_tensor", lambda p=p: p)() for p in model.parameters()]
        parameters = nn.utils.parameters_to_vector([p.detach().double() for p in parameters])
        self.saved |= {"parameters": parameters.numpy(), "sizes": self.sizes, **more}

    def close(self):
        """Write, and leave the job."""
        np.savez(self.path, **self.saved)
        self.session.close()


def plain(model, inputs, labels):
    """The backward pass of an ordinary loop."""
    loss_of(model, inputs, labels).backward()


def hook(scenario, make=make_model, **options):
    """DDP with the hook, in several buckets; gradients of samples without weight are infinite."""
    model = DistributedDataParallel(make(), bucket_cap_mb=0.001, **options)
    model = evenpace.torch.balance(model, scenario.loader)

    def backward(model, inputs, labels):
        loss = loss_of(model, inputs, labels)
        (loss if scenario.session.assignment.count else loss * float("inf")).backward()

    scenario.train(model, make_optimizer(model), backward)


def unused(scenario):
    """Parameters that an iteration does not use."""
    hook(scenario, make=Branches, find_unused_parameters=True)


def pieces_loss(scenario):
    """The scaled loss, batches in pieces, one of them summed, a GradScaler, and clipped gradients."""
    model = DistributedDataParallel(make_model())
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer = make_optimizer(model)
    for inputs, labels in scenario.batches():
        optimizer.zero_grad()
        parts = list(zip(inputs.split(5), labels.split(5), strict=True))
        for i, (part, part_labels) in enumerate(parts):
            with model.no_sync() if i < len(parts) - 1 else contextlib.nullcontext():
                reduction = "sum" if i == 1 else "mean"
                loss = nn.functional.cross_entropy(model(part), part_labels, reduction=reduction)
                scaler.scale(scenario.weighted(loss, len(part), reduction)).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
    scenario.keep(model)


def fsdp(scenario):
    """FSDP2, and the scaled loss."""
    model = make_model()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)

    def backward(model, inputs, labels):
        scenario.weighted(loss_of(model, inputs, labels)).backward()

    scenario.train(model, make_optimizer(model), backward)


def refused(scenario):
    """Mistakes, each of which must be named; all ranks make the same."""
    said = []

    def refuses(function, *arguments, **options):
        try:
            function(*arguments, **options)
        except InvalidRequestError as error:
            said.append(str(error))
        else:
            said.append("")

    refuses(evenpace.torch.balance, make_model(), scenario.loader)
    refuses(evenpace.torch.balance, fully_shard(make_model()), scenario.loader)
    mesh = distributed.init_device_mesh("cpu", (distributed.get_world_size(),))
    replicated = distributed.tensor.distribute_module(make_model(), mesh)
    refuses(evenpace.torch.balance, replicated, scenario.loader)
    synchronised = evenpace.torch.convert_sync_batchnorm(
        make_model(batch_norm=True), session=scenario.session
    )
    refuses(evenpace.torch.balance, DistributedDataParallel(synchronised), scenario.loader)
    refuses(evenpace.torch.balance, DistributedDataParallel(make_model()), scenario.loader, shard_size=2)
    model = make_model()
    lbfgs = torch.optim.LBFGS(model.parameters())
    refuses(evenpace.torch.balance, DistributedDataParallel(model), scenario.loader, lbfgs)
    refuses(average_statistics, DistributedDataParallel(make_model(batch_norm=True)), scenario.session)
    model = evenpace.torch.balance(DistributedDataParallel(make_model()), scenario.loader)
    refuses(evenpace.torch.balance, model, scenario.loader)
    refuses(Join, [model])
    server = Session(SessionConfig(scenario.session.config.manager, (Address("127.0.0.1", 1),)))
    other = evenpace.torch.DataLoader(scenario.loader.dataset, BATCH, session=server)
    refuses(evenpace.torch.balance, model, other)
    refuses(SyncBatchNorm, 3, session=server)
    server.close()
    refuses(scenario.weighted, torch.zeros(()))
    batches = iter(scenario.loader)
    inputs, labels = next(batches)
    refuses(scenario.weighted, torch.zeros(()), 10**6)
    refuses(scenario.weighted, torch.zeros(()), 1, "none")
    loss_of(model, inputs, labels).backward()
    refuses(scenario.weighted, torch.zeros(()))  # twice
    inputs, labels = next(batches)
    loss_of(model.module, inputs, labels).backward()  # not by way of DDP, and so not reduced
    refuses(next, batches)
    scenario.saved["said"] = said


def batch_norm(scenario):
    """Synchronised batch normalisation, and the scaled loss."""
    model = evenpace.torch.convert_sync_batchnorm(make_model(batch_norm=True), session=scenario.session)
    optimizer = make_optimizer(model)
    copies = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    model = DistributedDataParallel(model, forward_sync_buffers=False)

    def backward(model, inputs, labels):
        scenario.weighted(loss_of(model, inputs, labels)).backward()

    scenario.train(model, optimizer, backward)
    norm = model.module[1]
    scenario.saved |= {
        "mean": norm.running_mean.numpy(),
        "var": norm.running_var.numpy(),
        "tracked": norm.num_batches_tracked.item(),
    }
    for other in copies:
        other.load_state_dict(model.module.state_dict())
        inputs = make_data()[0]
        assert torch.equal(other.eval()(inputs), model.module.eval()(inputs))


def statistics(scenario):
    """Ordinary batch normalisation, whose statistics are averaged afterwards."""
    model = DistributedDataParallel(make_model(batch_norm=True), forward_sync_buffers=False)
    model = evenpace.torch.balance(model, scenario.loader)
    scenario.train(model, make_optimizer(model), plain)
    norm = model.module[1]
    own = torch.cat([norm.running_mean, norm.running_var]).clone()
    for _ in range(2):  # the second time, nothing has been trained since
        evenpace.torch.average_statistics(model, session=scenario.session)
    averaged = torch.cat([norm.running_mean, norm.running_var])
    scenario.saved |= {"own": own.numpy(), "averaged": averaged.numpy()}


def endless_fsdp(scenario):
    """Goes on with FSDP2 until something fails."""
    fsdp(scenario)


SCENARIOS = {
    function.__name__: function
    for function in (hook, unused, pieces_loss, fsdp, refused, batch_norm, statistics)
}

BY_THEMSELVES = {function.__name__: function for function in (endless_fsdp,)}

OPTIONS = {
    "endless_fsdp": {"epochs": 10**9},
    "statistics": {"minimum": 2, "drop_last": True},  # ordinary batch normalisation needs two samples
}


def main():
    """Go through the scenarios."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--manager", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("scenarios", nargs="+")
    options = parser.parse_args()
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    for name in options.scenarios:
        scenario = Scenario(name, options, **OPTIONS.get(name, {}))
        (SCENARIOS | BY_THEMSELVES)[name](scenario)
        scenario.close()
    distributed.barrier()
    # Fully sharded modules hold the group, so that its threads cannot be joined; see
    # tests/worker/torch/process_groups.py.
    os._exit(0)


if __name__ == "__main__":
    main()
