"""A linear model of sparse samples, whose cost grows with the features that a sample has, not with all."""

from typing import NamedTuple

import torch
from torch import nn


class SparseRows(NamedTuple):
    """Samples as compressed sparse rows (CSR)."""

    columns: torch.Tensor  # int64, (non-zeros,): their features
    values: torch.Tensor  # float, (non-zeros,): their values
    offsets: torch.Tensor  # int64, (samples + 1,): where each sample begins and the last one ends


class SparseLinear(nn.Module):
    """Linear model `w · x + b`: sparse rows in, margins (samples,) out.

    The gradient is dense, one number for each feature, as a parameter server wants it.
    """

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(features, 1))
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, rows: SparseRows) -> torch.Tensor:
        """Return each sample's margin, (samples,)."""
        sums = nn.functional.embedding_bag(
            rows.columns,
            self.weight,
            rows.offsets,
            mode="sum",
            per_sample_weights=rows.values,
            include_last_offset=True,
        )
        return sums.squeeze(1) + self.bias


def hinge_loss(margins: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean of `max(0, 1 - y m)`: with weight decay, a linear SVM; both are (samples,)."""
    return nn.functional.relu(1 - targets * margins).mean()


def logistic_loss(margins: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean of `log(1 + exp(-y m))`, logistic regression; margins and targets, ±1, (samples,)."""
    return nn.functional.softplus(-targets * margins).mean()
