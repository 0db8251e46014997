"""The preconditioner of a shard's optimiser, for the norms of gradients; it knows no gradient and no wire."""

import weakref

import torch

from idl.layout import Layout
from idl.preconditioning import STEPS, inverse_root

_PIECE = 2**16  # elements that are computed at once, while they are in a core's cache
_MOMENTS = ("max_exp_avg_sq", "velocity_hat", "exp_avg_sq", "velocity")  # amsgrad's take precedence


class Preconditioner:
    """The diagonal P of an optimiser in `idl.preconditioning.PRECONDITIONED`, from its second moment.

    P is of v after the last step whose number `STEPS` divides, or at which this process began to hold the
    job. Computed in each step, it would take about a sixth of the time of the step itself.

    Args:
        layout: Layout of the shard's part of the parameters.
    """

    def __init__(self, layout: Layout) -> None:
        # (elements,), 0 for statistics; None before the first `STEPS` steps.
        self.diagonal: torch.Tensor | None = None
        self._layout = layout
        # That the diagonal is of; weakly, so that the state of one that is replaced does not take up memory.
        self._of: weakref.ref[torch.optim.Optimizer] | None = None
        self._period = 0  # of `STEPS` steps, that the diagonal holds for

    def update(self, optimizer: torch.optim.Optimizer, steps: int) -> None:
        """Take the second moment of an optimiser where that is due; between steps, before any gradient.

        Args:
            optimizer: The optimiser, with one parameter in each group.
        """
        period = steps // STEPS
        if self._of is not None and optimizer is self._of() and period == self._period:
            return
        self._of, self._period = weakref.ref(optimizer), period
        if not period:
            self.diagonal = None
            return
        groups, begin = iter(optimizer.param_groups), 0
        for group in self._layout.groups:
            end = begin + group.elements
            if not group.statistics:
                own = next(groups)
                state = optimizer.state[own["params"][0]]
                moment = next(state[name] for name in _MOMENTS if name in state)
                if self.diagonal is None:
                    self.diagonal = moment.new_zeros(self._layout.elements)
                factor, addend = inverse_root(
                    self._layout.optimizer, own["betas"][1], own["eps"], int(state["step"])
                )
                for to, of in zip(self.diagonal[begin:end].split(_PIECE), moment.split(_PIECE), strict=True):
                    # The sign is 0 where v is, and else 1.
                    torch.div(of.sign(), of.sqrt().mul_(factor).add_(addend), out=to)
            begin = end
