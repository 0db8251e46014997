"""PyTorch: a mean of losses that tells, with its gradient, what it is a mean over."""

from typing import Any

import torch

from worker.own_session import own_session
from worker.session import Session

MEAN = "evenpace.torch.mean"
"""The name of `mean`, as the user writes it."""


class _Telling(torch.autograd.Function):
    """The identity; its backward pass, which precedes those of all layers, notes the loss's weight."""

    @staticmethod
    def forward(context: Any, loss: torch.Tensor, weight: torch.Tensor, session: Session) -> torch.Tensor:
        context.weight, context.session = weight, session
        return loss.view_as(loss)

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        context.session.weights.note(context.weight, MEAN)
        return (*gradients, None, None)


def weight_of(loss: torch.Tensor) -> torch.Tensor | None:
    """Return what a loss is a mean over, (), where it is what `mean` has returned; else None."""
    kind: Any = _Telling
    return loss.grad_fn.weight if isinstance(loss.grad_fn, kind._backward_cls) else None


def without_gradient(loss: torch.Tensor) -> torch.Tensor:
    """Return 0, whose backward pass goes through all that a loss depends on, and leaves gradients of 0.

    So the pass takes part in collective operations, whatever the loss and its gradients are: a mean over
    nothing may be NaN, and so may its gradients be where it is multiplied by 0.
    """
    found: set[Any] = {None}
    left: list[Any] = [loss.grad_fn]
    while left:
        if (node := left.pop()) not in found:
            found.add(node)
            left += (after for after, _ in node.next_functions)
            if node.next_functions:  # else it is a parameter
                node.register_hook(_zeros)
    return torch.where(torch.isfinite(loss), loss, 0.0) * 0.0


def _zeros(inputs: Any, _: Any) -> Any:
    """Return zeros in place of what a backward pass hands on from a node, whose hook this is."""
    return tuple(None if one is None else torch.zeros_like(one) for one in inputs)


def mean(
    losses: torch.Tensor, mask: torch.Tensor | None = None, *, session: Session | None = None
) -> torch.Tensor:
    """Return the mean of losses over what counts, such as tokens, by which its gradient is weighted.

    For a loader with `weight="loss"`; one with a function of the batch needs no such loss, but checks that
    both give the same weight. Only a loss that goes backward is weighted, so metrics may be such means, too.

        losses = cross_entropy(logits.transpose(1, 2), targets, reduction="none")
        evenpace.torch.mean(losses, targets != PAD).backward()

    Args:
        losses: One for each token, box or sample, of any shape.
        mask: What counts, of a shape that can be broadcast to that of `losses`: booleans, or weights from 0
            on, which must not depend on the parameters. None: everything counts 1.
        session: The session with the services; by default this process's.

    Returns:
        sum(mask * losses) / sum(mask), a scalar; 0 where nothing counts, whatever the losses are there.
    """
    if mask is None:
        weight = torch.tensor(float(losses.numel()), dtype=torch.float64)
        total = losses.sum()
    else:
        mask = mask.detach().expand_as(losses)
        weight = mask.sum(dtype=torch.float64)
        counted = torch.where(mask != 0, losses, 0.0)  # others may be infinite, or not a number
        total = (counted * mask).sum()
    result = total / torch.where(weight > 0, weight, 1.0).to(losses)
    if not result.requires_grad:
        return result
    telling: torch.Tensor = _Telling.apply(  # type: ignore[no-untyped-call]
        result, weight, session or own_session()
    )
    return telling
