"""PyTorch: an optimiser whose step takes place at the parameter server."""

import types
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch

from ps.optimizers import describe
from rpc.errors import InvalidRequestError
from worker.session import Layout, Session
from worker.torch_data import DataLoader

Optim = TypeVar("Optim", bound=torch.optim.Optimizer)


def distribute(optimizer: Optim, loader: DataLoader) -> Optim:
    """Let `optimizer.step()` push the gradient, weighted by the batch size, and pull new parameters.

    The optimiser stays what it is: learning-rate schedulers work on it, and what they change goes to the
    parameter server with the next step. Its own state (momentum and the like) lives there. All workers
    start from the parameters of the one that comes first. The gradient is expected to be of the *mean*
    loss over the batch.

    Args:
        optimizer: An SGD, Adam or AdamW of torch.optim.
        loader: The evenpace loader of the training data.

    Returns:
        The same optimiser.

    Raises:
        ValueError: The parameter server lacks this kind of optimiser or one of its options.
        InvalidRequestError: It has no parameters to train, or a service refuses.
    """
    link = _Link(optimizer, loader.session)

    # A plain function, bound: learning-rate schedulers take it apart to wrap it.
    def step(optimizer: torch.optim.Optimizer, closure: Callable[[], Any] | None = None) -> Any | None:
        return link.step(optimizer, closure)

    optimizer.step = types.MethodType(step, optimizer)  # type: ignore[method-assign]
    return optimizer


class _Link:
    """Carries gradients from, and parameters to, the tensors of an optimiser."""

    def __init__(self, optimizer: torch.optim.Optimizer, session: Session) -> None:
        self._session = session
        name, options = describe(optimizer)
        trained = [[p for p in group["params"] if p.requires_grad] for group in optimizer.param_groups]
        self._tensors = [p for group in trained for p in group]
        if not self._tensors:
            raise InvalidRequestError("the optimiser has no parameters that require a gradient")
        self._sizes = [sum(p.numel() for p in group) for group in trained]
        wide = all(p.dtype == torch.float64 for p in self._tensors)
        dtype = "float64" if wide else "float32"
        self._options = options
        initial = np.empty(sum(self._sizes), dtype=dtype)
        for view, tensor in zip(self._views(initial), self._tensors, strict=True):
            view.copy_(tensor.detach())
        session.on_parameters = self._take_parameters
        session.open_parameters(Layout(dtype, name, self._groups(options)), initial)
        self._gradients = self._views(session.gradient)

    @torch.no_grad()
    def step(self, optimizer: torch.optim.Optimizer, closure: Callable[[], Any] | None = None) -> Any | None:
        """What `optimizer.step` does from now on."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for view, tensor in zip(self._gradients, self._tensors, strict=True):
            if tensor.grad is None:
                view.zero_()
            else:
                view.copy_(tensor.grad)
        _, options = describe(optimizer)
        changed = options != self._options
        self._options = options
        self._session.finish_iteration(self._groups(options) if changed else None)
        return loss

    @torch.no_grad()
    def _take_parameters(self) -> None:
        for view, tensor in zip(self._views(self._session.parameters), self._tensors, strict=True):
            tensor.copy_(view)

    def _groups(self, options: list[dict[str, float]]) -> tuple[tuple[int, dict[str, float]], ...]:
        return tuple(zip(self._sizes, options, strict=True))

    def _views(self, flat: np.ndarray[Any, Any]) -> list[torch.Tensor]:
        """The tensors' places in a flat array, in their shapes."""
        parts = torch.split(torch.from_numpy(flat), [tensor.numel() for tensor in self._tensors])
        return [part.view(tensor.shape) for part, tensor in zip(parts, self._tensors, strict=True)]
