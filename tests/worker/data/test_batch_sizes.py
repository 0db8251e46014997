"""Batches that have other samples than planned are warned of."""

import pytest
import torch

from tests.services import OpenServices
from worker.torch.loader import DataLoader
from worker.torch.optimizer import distribute

COLLATES = {
    "drops": lambda samples: (torch.tensor(samples[1:])[:, None].expand(-1, 7), torch.tensor(samples[1:])),
    "second dimension": lambda samples: torch.tensor(samples).expand(9, -1),
    "graph": lambda samples: {"nodes": torch.zeros(50, 3), "of": [torch.tensor(samples)]},
    "own type": lambda samples: object(),
    "empty": lambda samples: [],
}


@pytest.mark.parametrize("collate", COLLATES)
def test_a_batch_of_fewer_samples_than_planned_is_warned_of_once(caplog, collate):
    """What has the samples in some dimension of some array, or says nothing of them, is left alone."""
    with OpenServices(1) as services:
        loader = DataLoader(list(range(20)), 5, session=services.session("w"), collate_fn=COLLATES[collate])
        model = torch.nn.Linear(1, 1)
        optimizer = distribute(torch.optim.SGD(model.parameters(), lr=0.1), loader)
        for _ in loader:
            optimizer.step()
    said = [record.message for record in caplog.records if "weighted by 5 samples" in record.message]
    assert len(said) == (collate == "drops")
