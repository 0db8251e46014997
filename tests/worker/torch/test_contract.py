"""The PyTorch adapter does what every adapter does."""

import numpy as np
import torch
from torch import nn

from tests.worker.contract import Contract
from worker.torch.loader import DataLoader
from worker.torch.optimizer import distribute


class Sgd:
    """PyTorch's SGD; see `tests.worker.contract.Sgd`."""

    def __init__(self, start, loader, rates=(1.0,), dtypes=None, **options):
        dtypes = [getattr(torch, name) for name in dtypes or ["float32"] * len(start)]
        tensors = [torch.as_tensor(value, dtype=dtype) for value, dtype in zip(start, dtypes, strict=True)]
        self._parameters = [nn.Parameter(tensor.clone()) for tensor in tensors]
        self._optimizer = distribute(torch.optim.SGD(self._parameters, lr=1.0), loader, **options)
        self._schedule = torch.optim.lr_scheduler.LambdaLR(
            self._optimizer, lambda step: rates[min(step, len(rates) - 1)]
        )

    @property
    def values(self):
        """The parameters."""
        return [parameter.detach().double().numpy() for parameter in self._parameters]

    @property
    def dtypes(self):
        """The parameters' types."""
        return [str(parameter.dtype).removeprefix("torch.") for parameter in self._parameters]

    def step(self, *gradients):
        """Take a step, and one of the schedule."""
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = torch.as_tensor(np.asarray(gradient), dtype=parameter.dtype)
        self._optimizer.step()
        self._schedule.step()


class TestTorch(Contract):
    """With DataLoader and distribute of `evenpace.torch`."""

    loader = DataLoader
    sgd = Sgd
