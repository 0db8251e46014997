"""A worker's script: DistributedDataParallel with several buckets, for which the worker `late` is late."""

import argparse
import time

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import evenpace
import evenpace.torch

SAMPLES, BATCH, FEATURES = 160, 16, 256
SECONDS = 0.1  # by which `late` is late
LATE = "late"


def main():
    """Train for an epoch, in two passes a batch or in micro-batches if wanted."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pieces", action="store_true", help="Accumulate over two pieces of each batch.")
    parser.add_argument("--micro-batch", type=int, help="Samples of a micro-batch.")
    parser.add_argument("--out")
    options = parser.parse_args()

    distributed.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    layers = [nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.Tanh()) for _ in range(8)]
    # The first bucket has 1 MiB, as DDP has it, four of the layers.
    model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.utils.data.TensorDataset(torch.randn(SAMPLES, FEATURES))
    loader = evenpace.torch.DataLoader(data, BATCH, seed=3, micro_batch=options.micro_batch)
    evenpace.torch.balance(model, loader, optimizer)
    late = evenpace.session().config.worker == LATE
    for batch in loader:
        optimizer.zero_grad()
        for (inputs,) in [batch] if options.micro_batch is None else evenpace.torch.micro_batches(batch):
            if options.pieces:
                with model.no_sync():
                    (model(inputs).square().mean() / 2).backward()
            loss = model(inputs).square().mean()
            time.sleep(SECONDS if late else 0)
            (loss / 2 if options.pieces else loss).backward()
        with torch.no_grad():
            model(inputs)  # as a script may look at what it has learned
        optimizer.step()


if __name__ == "__main__":
    main()
