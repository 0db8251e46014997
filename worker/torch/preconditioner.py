"""PyTorch: the preconditioner of an optimiser that steps on the ranks, for the norms of gradients."""

import logging
from collections.abc import Sequence
from typing import NamedTuple

import torch

from idl.preconditioning import STEPS, inverse_root

log = logging.getLogger(__name__)

_HALF = (torch.float16, torch.bfloat16)


class _Flat(NamedTuple):
    """The diagonal of a bucket in a period: its parameters' ids with strides of gradients, and the values."""

    period: int
    order: list[tuple[int, tuple[int, ...]]]
    values: torch.Tensor


class Preconditioner:
    """The diagonal P of Adam or AdamW, of their second moment as all ranks have it.

    It is computed again in the first iteration of each `STEPS`, so that ranks have the same one.

    Args:
        optimizer: The optimiser.
    """

    def __init__(self, optimizer: torch.optim.Adam) -> None:
        self.every = 1  # norms are taken in iterations that are multiples of this, to save time
        self._optimizer = optimizer
        self._period = 0  # of `STEPS` iterations, that the diagonals hold for
        self._diagonals: dict[torch.Tensor, torch.Tensor] = {}  # by parameter
        # Memory that is used again, since new memory takes longer than the computing: by parameter, and by
        # the first one of a bucket.
        self._memory: dict[torch.Tensor, torch.Tensor] = {}
        self._flat: dict[torch.Tensor, _Flat] = {}

    def forget(self) -> None:
        """Have it computed again in the next iteration, as all ranks of another group do."""
        self._diagonals, self._flat = {}, {}  # the group has other buckets

    def is_outdated(self, iteration: int) -> bool:
        """Return whether it is to be computed again for an iteration."""
        return not self._diagonals or self._period != iteration // STEPS

    @torch.no_grad()
    def of(self, parameters: Sequence[torch.Tensor], iteration: int) -> list[torch.Tensor] | None:
        """Return P of some parameters in an iteration, (elements,) each.

        It is None if the optimiser has none yet, or the iteration is none of those in which norms are taken.
        It is 0 for a parameter that the optimiser does not step, or has stepped fewer than `STEPS` times.
        """
        if iteration % self.every:
            return None
        if self.is_outdated(iteration):
            self._period, self._diagonals = iteration // STEPS, self._computed()
        if not self._diagonals:
            return None
        zero = [p.new_zeros(p.numel()) for p in parameters if p not in self._diagonals]
        return [self._diagonals[p] if p in self._diagonals else zero.pop(0) for p in parameters]

    def flat(
        self, bucket: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor], iteration: int
    ) -> torch.Tensor | None:
        """Return P of parameters whose gradients lie one after the other in memory, (elements,), likewise.

        Args:
            bucket: The parameters.
            gradients: Their gradients, whose memory has no gaps.
            iteration: The iteration.
        """
        diagonals = self.of(bucket, iteration)
        if diagonals is None:
            return None
        order = [(id(p), gradient.stride()) for p, gradient in zip(bucket, gradients, strict=True)]
        last = self._flat.get(bucket[0])
        if last is not None and (last.period, last.order) == (self._period, order):
            return last.values
        pieces = [_in_order(d.view(like.shape), like) for d, like in zip(diagonals, gradients, strict=True)]
        elements = sum(map(torch.numel, pieces))
        memory = None if last is None or last.values.numel() != elements else last.values
        values = torch.cat(pieces, out=pieces[0].new_empty(elements) if memory is None else memory)
        self._flat[bucket[0]] = _Flat(self._period, order, values)
        return values

    def _computed(self) -> dict[torch.Tensor, torch.Tensor]:
        parameters, moments, factors, addends = [], [], [], []
        for group in self._optimizer.param_groups:
            name = "max_exp_avg_sq" if group["amsgrad"] else "exp_avg_sq"
            for parameter in group["params"]:
                state = self._optimizer.state.get(parameter)
                if not state or (steps := int(state["step"])) < STEPS:
                    continue
                factor, addend = inverse_root("adam", float(group["betas"][1]), group["eps"], steps)
                parameters.append(parameter)
                moments.append(state[name].float() if state[name].dtype in _HALF else state[name])
                factors.append(factor)
                addends.append(addend)
        if not parameters:
            return {}
        for parameter, moment in zip(parameters, moments, strict=True):
            if parameter not in self._memory:
                self._memory[parameter] = torch.empty_like(moment)
        diagonals = [self._memory[parameter] for parameter in parameters]
        # On a CPU one after the other, so that it stays in the cache; else together, in a few kernels.
        one = 1 if parameters[0].is_cpu else len(parameters)
        for begin in range(0, len(parameters), one):
            part = slice(begin, begin + one)
            roots = torch._foreach_sqrt(moments[part])
            torch._foreach_mul_(roots, factors[part])
            torch._foreach_add_(roots, addends[part])
            torch._foreach_copy_(
                diagonals[part], torch._foreach_sign(moments[part])
            )  # 0 where v is, and else 1
            torch._foreach_div_(diagonals[part], roots)
        return {p: diagonal.reshape(-1) for p, diagonal in zip(parameters, diagonals, strict=True)}


def preconditioner_of(optimizer: torch.optim.Optimizer | None) -> Preconditioner | None:
    """Return the preconditioner of Adam and its kin; None for other optimisers, and for none."""
    if isinstance(optimizer, torch.optim.Adam):  # as AdamW is, too
        return Preconditioner(optimizer)
    if not isinstance(optimizer, torch.optim.SGD | None):
        log.info(
            "optimizer %s: the gradient noise is that of plain gradients, as of SGD; that of an optimiser's "
            "steps is known for Adam and AdamW of torch.optim",
            type(optimizer).__name__,
        )
    return None


def _in_order(values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return a tensor's elements, (elements,), in the order in which another one's lie in memory."""
    if values.stride() != like.stride():
        values = torch.empty_strided(
            like.shape, like.stride(), dtype=values.dtype, device=values.device
        ).copy_(values)
    return values.as_strided((values.numel(),), (1,))
