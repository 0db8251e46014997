"""A worker's script: DDP or FSDP2 in groups that the manager forms; parameters differ at first."""

import argparse
import contextlib
import os
import signal
import socket
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import evenpace
import evenpace.torch
from idl.plan import JobSpec, permutation

SAMPLES, BATCH, FEATURES = 240, 24, 6  # ten batches an epoch


class Problem(torch.utils.data.Dataset):
    """Samples of a made-up function."""

    def __init__(self):
        generator = torch.Generator().manual_seed(5)
        self.inputs = torch.randn(SAMPLES, FEATURES, generator=generator, dtype=torch.float64)
        self.targets = self.inputs.sin().sum(1, keepdim=True)

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return self.inputs[index], self.targets[index]


class Average:
    """A running average of the weights, as scripts keep."""

    def __init__(self, module):
        self.values = [parameter.detach().clone() for parameter in module.parameters()]

    def update(self, module):
        """Take the present weights into it."""
        for value, parameter in zip(self.values, module.parameters(), strict=True):
            value.mul_(0.9).add_(parameter.detach(), alpha=0.1)

    def state_dict(self):
        """Return its state."""
        return {"values": self.values}

    def load_state_dict(self, state):
        """Take another one's state."""
        for value, other in zip(self.values, state["values"], strict=True):
            value.copy_(other)


def whole(value):
    """Return a tensor, with the shards of all ranks, which call this."""
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def wait_for(path):
    """Wait until there is a file."""
    while not path.exists():
        time.sleep(0.01)


def await_second_attempt(session):
    """Wait until nothing can wait in the first attempt any more."""
    while session._membership._fenced < 2:
        time.sleep(0.01)


def make(seed, optimizer, hidden=8, *, norm=False, sharded=False, shard_size=None):
    """Make a network, its optimiser, and schedulers that step by batch and by epoch."""
    torch.manual_seed(seed)
    middle = (nn.BatchNorm1d(hidden), nn.Dropout(0.2)) if norm else ()
    module = nn.Sequential(nn.Linear(FEATURES, hidden), *middle, nn.Tanh(), nn.Linear(hidden, 1)).double()
    if sharded:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard  # which takes long to import

        mesh = None
        if shard_size:
            mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("copies", "shards"))
        for layer in (module[0], module):
            fully_shard(layer, mesh=mesh)
    if optimizer == "adam":
        made = torch.optim.Adam(module.parameters(), lr=0.02)
    elif optimizer == "rmsprop":
        made = torch.optim.RMSprop(module.parameters(), lr=0.01)
    else:
        made = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)
    by_batch = torch.optim.lr_scheduler.LambdaLR(made, lambda step: 1 / (1 + step / 100))
    by_epoch = torch.optim.lr_scheduler.StepLR(made, step_size=2, gamma=0.7)
    return module, made, by_batch, by_epoch


class BrokenHalfway:
    """A reduction by which ranks agree on a step: all others complete it, but not this one.

    Args:
        group: The group that this rank has with the others.
    """

    def __init__(self, group):
        self._every, self._carrier = group._every, group._carrier

    def allreduce(self, tensors):
        """Complete the reduction, and break the group."""
        work = self._every.allreduce(tensors)
        work.wait()
        self._carrier._break("a test has it break")
        return work

    def close(self):
        """End all operations."""
        self._every.close()


def break_halfway(session):
    """Let this rank not know that all ranks have their gradients of the iteration under way."""
    group = session.exchange._former._group
    group._every = BrokenHalfway(group)


def connect_while_groups_form(port):
    """Have a thread connect to a port of this machine when each group begins to be made.

    Returns:
        The connections, to which that one is added.
    """
    make, found = distributed.init_process_group, []

    def made(*arguments, **options):
        thread = threading.Thread(target=lambda: found.append(socket.create_connection(("127.0.0.1", port))))
        thread.start()
        thread.join()
        return make(*arguments, **options)

    distributed.init_process_group = made
    return found


def is_untouched(connection):
    """Return whether a connection is as it was made, and nobody has shut it down."""
    try:
        connection.recv(1, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 0
    return False


def die_assembling(size, *ranks):
    """Let this process die where it has one of these ranks in a group that puts shards together.

    Args:
        ranks: The ranks.
    """
    from worker.torch import replicated_shards

    carry = replicated_shards._carry

    def carry_or_die(*arguments):
        if distributed.get_world_size() == size and distributed.get_rank() in ranks:
            os.kill(os.getpid(), signal.SIGKILL)
        return carry(*arguments)

    replicated_shards._carry = carry_or_die


def trained_alone(seed, iterations, optimizer="adam", clip=None):
    """Train in one process; return the parameters and their average."""
    module, made, by_batch, by_epoch = make(seed, optimizer)
    average, problem = Average(module), Problem()
    spec = JobSpec(SAMPLES, BATCH, 3, shuffle=True)
    whole, rest = divmod(iterations, spec.iterations_per_epoch)
    for epoch in range(whole + bool(rest)):
        for batch in np.split(permutation(spec, epoch), 10)[: rest if epoch == whole else None]:
            made.zero_grad()
            indices = torch.from_numpy(batch)
            nn.functional.mse_loss(module(problem.inputs[indices]), problem.targets[indices]).backward()
            if clip:
                nn.utils.clip_grad_norm_(module.parameters(), clip)
            made.step()
            average.update(module)
            by_batch.step()
        by_epoch.step()
    return module.state_dict(), average.values


def batches(loader, by_epoch):
    """Yield the batches of epoch after epoch until this worker is released."""
    while loader.session.released is None:
        yield from loader
        by_epoch.step()


def main():
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--optimizer", default="adam")
    parser.add_argument("--pause", type=float, default=0.0, help="Seconds that each iteration takes longer.")
    parser.add_argument("--stop", type=Path, required=True, help="A file that will say when, by iterations.")
    parser.add_argument("--norm", action="store_true", help="Have batch normalisation and dropout.")
    parser.add_argument("--sharded", action="store_true", help="Train by FSDP2, without an average.")
    parser.add_argument("--shard-size", type=int, help="Likewise over a mesh of copies and shards.")
    parser.add_argument("--clip", type=float, help="Clip gradients to this norm.")
    parser.add_argument(
        "--break-halfway",
        type=int,
        nargs="+",
        default=[],
        help="An iteration, and ranks that cannot agree on its step with the others.",
    )
    parser.add_argument(
        "--die-assembling", type=int, nargs="+", help="The size of a group, and the ranks that die in it."
    )
    parser.add_argument("--closure", action="store_true", help="Compute gradients within the step.")
    parser.add_argument("--join", action="store_true", help="Train in the context of `model.join()`.")
    parser.add_argument("--hidden", type=int, default=8)
    parser.add_argument("--backend", default="gloo")
    parser.add_argument("--change-alone", action="store_true", help="Change a parameter in iteration 5.")
    parser.add_argument("--micro-batch", type=int)
    parser.add_argument("--connect", type=int, help="A port to connect to while groups form.")
    parser.add_argument("--hold", type=Path, help="Compute the first batch once there is this file.")
    parser.add_argument("--late", action="store_true", help="Ask for a batch once the first attempt is over.")
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        help="Beside it are .txt, a line a batch, and .pt; for a folder these have the worker's name.",
    )
    options = parser.parse_args()
    if options.out.is_dir():
        options.out /= evenpace.session().config.worker

    if options.backend != "gloo":
        from tests.scripts import stand_in_nccl  # which is not found under torchrun

        stand_in_nccl.register()
    distributed.init_process_group(options.backend)
    sharded = options.sharded or options.shard_size is not None
    module, optimizer, by_batch, by_epoch = make(
        options.seed,
        options.optimizer,
        options.hidden,
        norm=options.norm,
        sharded=sharded,
        shard_size=options.shard_size,
    )
    average = None if sharded else Average(module)
    model = module
    if not sharded:
        model = DistributedDataParallel(module)
    loader = evenpace.torch.DataLoader(
        Problem(),
        BATCH,
        shuffle=True,
        seed=3,
        micro_batch=options.micro_batch,
    )
    also = [average] if average else ()
    beside = connect_while_groups_form(options.connect) if options.connect else []
    evenpace.torch.balance(model, loader, optimizer, also=also, shard_size=options.shard_size)
    session = evenpace.session()
    if options.late:
        session.before_batch.insert(0, partial(await_second_attempt, session))  # groups form later
    if options.die_assembling:
        die_assembling(*options.die_assembling)
    joins = model.join() if options.join else contextlib.nullcontext()
    with options.out.with_suffix(".txt").open("a", buffering=1) as seen, joins:
        for batch in batches(loader, by_epoch):
            now = session.assignment
            if options.stop.exists() and now.iteration >= int(options.stop.read_text()):
                break
            ranks = f"{distributed.get_rank()} {distributed.get_world_size()}"
            seen.write(f"{now.attempt} {now.iteration} {now.start} {now.count} {ranks}\n")
            if options.hold:
                wait_for(options.hold)
            if options.change_alone and now.iteration == 5:
                module[0].bias.data[0] += 1e-9

            def evaluate(batch=batch):
                optimizer.zero_grad()
                time.sleep(options.pause if options.closure else 0)
                parts = evenpace.torch.micro_batches(batch) if options.micro_batch else (batch,)
                for inputs, targets in parts:
                    loss = nn.functional.mse_loss(model(inputs), targets)
                    (evenpace.torch.weighted(loss) if sharded else loss).backward()

            if not options.closure:
                evaluate()
            if options.clip:
                nn.utils.clip_grad_norm_(model.parameters(), options.clip)
            if [now.iteration, now.attempt] == [*options.break_halfway[:1], 1] and (
                distributed.get_rank() in options.break_halfway[1:]
            ):
                break_halfway(session)
            optimizer.step(*((evaluate,) if options.closure else ()))
            if average:
                average.update(module)
            by_batch.step()
            time.sleep(0 if options.closure else options.pause)
    state = {name: whole(value) for name, value in module.state_dict().items()}
    end = {
        "parameters": state,
        "average": average.values if average else [],
        "released": session.released,
        "beside": [is_untouched(one) for one in beside],
    }
    torch.save(end, options.out.with_suffix(".part"))
    os.replace(options.out.with_suffix(".part"), options.out.with_suffix(".pt"))


if __name__ == "__main__":
    main()
