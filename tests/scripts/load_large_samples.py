"""A worker's script: a loading process reads samples ahead for it, each larger than a pipe holds."""

import numpy as np
import torch

import evenpace

SAMPLES, FEATURES, BATCH = 40, 2**17, 2


class LargeSamples:
    """A map-style data set whose samples have half a MiB each."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return np.full(FEATURES, index, np.float32)


def main():
    """Train on one number of each sample."""
    loader = evenpace.torch.DataLoader(LargeSamples(), BATCH, num_workers=1)
    model = torch.nn.Linear(1, 1)
    optimizer = evenpace.torch.distribute(torch.optim.SGD(model.parameters(), lr=1e-6), loader)
    for batch in loader:
        model(batch[:, :1]).mean().backward()
        optimizer.step()


if __name__ == "__main__":
    main()
