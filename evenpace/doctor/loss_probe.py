"""A process that runs a script's first batches in parts, to see what its loss is a mean over.

The script runs as the only worker of a local job, and nothing is trained: its loader gives it a batch, one
half of it, and the other half, and each gradient is written down in place of being contributed. `loss_check`
starts it, and draws conclusions.
"""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenpace.launch import be_a_group_of_one, run_script
from idl.layout import Group
from idl.plan import Assignment
from worker.exchanges.parameter_server import ParameterServer
from worker.gradient import Gradient
from worker.own_session import set_own_session
from worker.session import Session, SessionConfig

_TRIALS = 3  # batches that are taken apart
_ELEMENTS = 2**20  # of a gradient, that are written down: what holds for all of it holds for a part


class ProbeSession(Session):
    """A session that computes parts of batches, and contributes none of their gradients.

    It goes through (batch, one half, other half) for each of a few batches, and computes the first once more:
    a gradient that differs then depends on random numbers. After that, the process ends.

    Args:
        found: The file for what was found: `gradients`, (passes, elements); `counts`, `weights`, (passes,).
    """

    def __init__(self, config: SessionConfig, found: Path) -> None:
        super().__init__(config)
        self._found = found
        # Of each pass, the first position in epoch 0, and the samples.
        self._passes: list[tuple[int, int]] = []
        self._gradients: list[NDArray[Any]] = []
        self._weights: list[float] = []
        self._first: Assignment | None = None  # whose parameters all passes have
        self.own_gradient: Callable[[], NDArray[Any]] | None = None  # where the exchange does not have it
        exchange = self.exchange
        contribute, take = exchange.contribute, exchange.take

        def write_down(done: Assignment, groups: Sequence[Group] | None, lr_scale: float) -> None:
            if isinstance(exchange, ParameterServer):
                self._note(done, trained(exchange.gradient))
            else:
                contribute(done, groups, lr_scale)
                assert self.own_gradient is not None
                self._note(done, self.own_gradient())

        def take_first(assignment: Assignment) -> None:
            self._first = self._first or assignment
            take(self._first)

        exchange.contribute = write_down  # type: ignore[method-assign]
        if isinstance(exchange, ParameterServer):
            exchange.take = take_first  # type: ignore[method-assign]
            exchange.may_begin = lambda part: False  # type: ignore[method-assign]

    def begin_iteration(self, instead: Assignment | None = None) -> None:
        """Begin a pass over the next part in place of the manager's assignment."""
        now = self.assignment
        if now is not None and not self._passes:
            size, samples = now.total, self.training.declared.dataset_size
            trials = max(1, min(_TRIALS, samples // size))
            for start in range(0, trials * size, size):
                half = size // 2
                self._passes += [(start, size), (start, half), (start + half, size - half)]
            self._passes.append((0, size))
        if now is not None and now.batch_start is not None:  # else it is one of ours
            start, count = self._passes[len(self._gradients)]
            instead = replace(now, epoch=0, start=start, count=count, total=count, batch_start=None)
        super().begin_iteration(instead)

    def _note(self, done: Assignment, gradient: NDArray[Any]) -> None:
        self._gradients.append(gradient[:: -(-len(gradient) // _ELEMENTS)].copy())
        weight = self.weights.of(done)
        self._weights.append(np.nan if weight is None else weight)
        if len(self._gradients) == len(self._passes):
            with self._found.open("wb") as file:
                counts = [count for _, count in self._passes]
                np.savez(file, gradients=self._gradients, counts=counts, weights=self._weights)
            sys.stdout.flush()
            os._exit(0)  # whatever else the script would do is of no use


def trained(gradient: Gradient) -> NDArray[Any]:
    """Return the elements of a flat gradient that are no statistics, (n,)."""
    ranges = gradient.layout.ranges
    return np.concatenate(
        [gradient.values[begin:end] for begin, end, group in ranges if not group.statistics]
    )


def _still_layers(session: ProbeSession, all_reduce: bool) -> None:
    """Have PyTorch's layers that depend on chance, or on other samples, compute as in evaluation."""
    import torch
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    kinds = (torch.nn.modules.dropout._DropoutNd, torch.nn.modules.batchnorm._NormBase)

    def be_still(module: torch.nn.Module, inputs: Any) -> None:
        if isinstance(module, kinds):
            module.training = False

    torch.nn.modules.module.register_module_forward_pre_hook(be_still)
    if not all_reduce:
        return
    at_hand: list[NDArray[Any]] = []

    def write_down(optimizer: torch.optim.Optimizer, *arguments: Any) -> None:
        at_hand.clear()
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    at_hand.append(parameter.grad.detach().double().cpu().numpy().ravel())
                    parameter.grad = None  # so that the step changes nothing

    register_optimizer_step_pre_hook(write_down)
    session.own_gradient = lambda: np.concatenate(at_hand)


def main(arguments: Sequence[str]) -> None:
    """Run a script: FILE MANAGER [SHARD] -- SCRIPT ARGUMENTS."""
    from rpc.address import Address

    cut = arguments.index("--")
    found, manager, *shards = arguments[:cut]
    script, *own = arguments[cut + 1 :]
    config = SessionConfig(
        Address.parse(manager), tuple(Address.parse(shard) for shard in shards), worker="probe"
    )
    session = ProbeSession(config, Path(found))
    set_own_session(session)
    if not shards:
        be_a_group_of_one()
    if find_spec("torch") is not None:  # which the script may use, if only through another module
        _still_layers(session, all_reduce=not shards)
    run_script(Path(script), own)


if __name__ == "__main__":
    main(sys.argv[1:])
