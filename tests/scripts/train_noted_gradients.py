"""Train, and note the gradient of each contribution to a step, worked out by a pass of its own.

    evenpace worker --manager HOST:PORT [--ps HOST:PORT] train_noted_gradients.py --out FILE.npz

Without a parameter server, ranks all-reduce, as RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT say.
"""

import argparse

import numpy as np
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import evenpace.torch
from tests.worker.torch.process_groups import end_process_group
from worker.own_session import own_session

SAMPLES, BATCH_SIZE, EPOCHS, SEED = 60, 16, 4, 3


def make_data():
    """Return inputs and targets of a regression with much noise."""
    numbers = torch.Generator().manual_seed(5)
    inputs = torch.randn(SAMPLES, 6, dtype=torch.float64, generator=numbers)
    return inputs, inputs.sum(1, keepdim=True) + torch.randn(
        SAMPLES, 1, dtype=torch.float64, generator=numbers
    )


def make_model():
    """Return the network, with the same first parameters each time."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 1)).double()


def main() -> None:
    """Train; write this worker's contributions: iterations and counts, (n,), gradients, (n, elements)."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--micro-batch", type=int)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--adam", action="store_true", help="in place of SGD")
    parser.add_argument("--scale", type=float, default=1.0, help="of the loss, undone before the step")
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = torch.utils.data.TensorDataset(*make_data())
    model, session = make_model(), own_session()
    plain = list(model.parameters())
    if options.adam:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    loader = evenpace.torch.DataLoader(
        data, BATCH_SIZE, shuffle=True, seed=SEED, micro_batch=options.micro_batch
    )
    network = model
    if session.exchange.loader_finishes:
        distributed.init_process_group("gloo")
        network = evenpace.torch.balance(DistributedDataParallel(model), loader, optimizer)
    else:
        evenpace.torch.distribute(optimizer, loader, model)
    noted = []

    def note(inputs, targets):
        loss = nn.functional.mse_loss(model(inputs), targets)
        gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, plain)])
        noted.append((session.assignment.iteration, len(inputs), gradient.numpy()))

    for _ in range(options.epochs):
        for batch in loader:
            optimizer.zero_grad()
            parts = [batch] if options.micro_batch is None else evenpace.torch.micro_batches(batch)
            notes = []
            for inputs, targets in parts:
                notes.append((inputs, targets))
                (options.scale * nn.functional.mse_loss(network(inputs), targets)).backward()
            for inputs, targets in notes if session.assignment.count else ():
                note(inputs, targets)
            for parameter in plain if options.scale != 1 else ():
                parameter.grad /= options.scale
            optimizer.step()
    iterations, counts, gradients = zip(*noted, strict=True)
    np.savez(options.out, iterations=iterations, counts=counts, gradients=np.stack(gradients))
    if session.exchange.loader_finishes:
        del network, optimizer
        end_process_group()


if __name__ == "__main__":
    main()
