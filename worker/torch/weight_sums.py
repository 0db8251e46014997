"""PyTorch: what a batch's gradient is a mean over, summed over the ranks of an all-reduce.

This module knows neither the session nor slices.
"""

import torch
from torch import distributed

_HALF = (torch.float16, torch.bfloat16)


class WeightSum:
    """The sum of the ranks' weights of their slices of one batch, on its way.

    All ranks have given their weights once a reduction that they began later has ended: whoever has the
    result of that one does not wait for other ranks here.

    Args:
        own: This rank's weight.
        device: What the group reduces tensors on.
        group: The ranks; None for torch.distributed's default group.
    """

    def __init__(
        self, own: float, device: torch.device, group: distributed.ProcessGroup | None = None
    ) -> None:
        self._sum = torch.tensor(own, dtype=torch.float64, device=device)
        self._work = distributed.all_reduce(self._sum, group=group, async_op=True)

    def wait(self) -> None:
        """Wait for the other ranks' weights; off the CPU, the device does."""
        self._work.wait()

    def over(self, part: float) -> torch.Tensor:
        """Return a part of the sum over the sum, (), after `wait`; 0 where no rank has a weight."""
        return torch.where(self._sum > 0, part / self._sum, 0.0)

    @torch.no_grad()
    def divide(self, sums: torch.Tensor, factor: float) -> None:
        """Multiply gradients, summed over the ranks, by a factor over the sum, in place; waits for it."""
        self.wait()
        scale = self.over(factor)
        if sums.dtype in _HALF:  # off the CPU, the factor would be rounded as they are
            sums.copy_(sums.float().mul_(scale))
        else:
            sums.mul_(scale)
