"""The times of backward passes whose gradients are pushed meanwhile, in the records of the manager."""

import numpy as np
import pytest
import torch
from torch import nn

from batchsize_manager.client import ManagerClient
from idl.records import WorkerRecord
from tests.services import OpenServices, in_threads
from worker.torch.loader import DataLoader
from worker.torch.micro_batches import micro_batches
from worker.torch.optimizer import distribute

LAYERS, WIDTH, BATCH = 6, 400, 4
ITERATIONS, TRIALS = 9, 3  # in the first ones it is seen whether the script changes gradients
FIRST = WorkerRecord._fields.index("backward_time")  # of the four, the last fields


def train(session, micro_batch):
    """Go through an epoch."""
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(
        torch.ones(BATCH * ITERATIONS, WIDTH), BATCH, session=session, micro_batch=micro_batch
    )
    distribute(optimizer, loader, model, bucket_cap_mb=0.5)
    for batch in loader:
        optimizer.zero_grad()
        for inputs in [batch] if micro_batch is None else micro_batches(batch):
            model(inputs).square().mean().backward()
        optimizer.step()


@pytest.mark.ci
@pytest.mark.parametrize("micro_batch", [None, 1])
def test_the_times_of_a_pass_are_known_once_its_buckets_are_pushed(micro_batch):
    """They are those of the last pass: parts of the whole, and of what no pass hides the communication."""
    with OpenServices(2, 2) as services:
        sessions = [services.session(name) for name in "ab"]
        in_threads(*(lambda s=session: train(s, micro_batch) for session in sessions))
        with ManagerClient(services.manager) as client:
            records = client.history("default", 0)[1]
    assert len(records) == ITERATIONS
    found = [list(record.parts.values()) for record in records]
    for part in (part for parts in found[:TRIALS] for part in parts):
        assert np.isnan(part[FIRST:]).all(), "pushed by the step"
    for part in (part for parts in found[TRIALS:] for part in parts):
        assert 0 < part.first_bucket_time < part.backward_time < part.batch_processing_time
        assert part.other_buckets_time > 0
        assert part.last_bucket_time > 0
        assert part.communication_time > 0
